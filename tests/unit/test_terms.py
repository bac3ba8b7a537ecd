"""Plain English and one term for each thing: words that documents, help, messages and docstrings do not contain."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from launcher.cli import command_group
from launcher.cli.command_table import COMMANDS
from launcher.cli.test_distributed import command as collectives_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("docker/*.md"),
]
COMMENTED = [
    *ROOT.glob("scripts/**/*.sh"),
    *ROOT.glob("examples/*"),
    *ROOT.glob("config/*"),
    *ROOT.glob("hostfiles/*"),
    *ROOT.glob("docker/[!R]*"),
    ROOT / "compose.yaml",
    ROOT / "Makefile",
]
MODULES = [*ROOT.glob("launcher/**/*.py"), ROOT / "train.py"]

# A word or phrase that no reader should meet, and what to write instead.
EVERYWHERE = {
    r"\b(?:leav|left)\w* (?:\w+ ){0,4}away\b": "leave out, skip, omit",
    r"\bblanks?\b(?! lines?\b)": "space",
    r"(?<!--)\bfolders?\b": "directory",
    r"\bgateways?\b": "jump host",
    r"\bbastions?\b": "jump host",
    r"(?<!latency, )\b(?:we|us|our|ours|ourselves)\b": "launch, or this machine",
    r"\bsigns? of life\b": "heartbeat",
    r"\b(?:stand|stands|stood|standing) (?:still|apart|there|here|in the)\b": "hangs, is suspended, differs, is in",
    r"\b(?:come|comes|came) home\b": "is copied back",
    r"\bby way of\b": "through, with",
    r"\bwithout a word\b": "without contact, silently",
    r"\bleft-overs?\b": "leftover",
    r"\b(?:is|are|was) borne\b": "isn't detected; the run continues",
    r"\bin the place of\b": "instead of",
    r"\b(?:has|had|have) ended well\b": "had succeeded",
    r"\bends? well\b": "succeeds, exits with 0",
    r"\bended well\b": "succeeded, exited with 0",
    r"\btells? all\b": "covers everything",
    r"\bnodes? answers?\b": "host responds",
    r"\b(?:is|are|was|were) meant by\b": "matches",
    r"\blets nobody in\b": "blocks new processes",
    r"\bnobody asked\b": "launch didn't request",
    r"\ball the same(?:$|[,.;:)]| \w+s\b)": "anyway",
    r"\bhints?\b": "fix",
    r"\bof our own\b": "launch's own",
    r"\bgoes on\b": "continues",
    r"\bgo on\b": "continue",
    r"\b(?:somebody|someone) else's?\b(?= run| port)": "another user's",
    r"\bbegins? anew\b": "starts over",
    r"\bfor so long\b": "for that long",
    r"\bsay(?:s)? else\b": "say otherwise",
    r"\bthe way to stay\b": "use",
    r"\bits own accord\b": "by itself",
    r"\btook (?:it|us) for dead\b": "considered it dead",
    r"\bprocess(?:es)? left on [^.]{0,20}nodes?\b": "hosts",
    r"\bbegun anew\b": "starting over",
    r"\bin vain\b": "without result",
    r"\bis no (?:message|list|record|task|part|checkpoint|word|number)\b": "isn't a",
    r"\b(?:with|by) everybody\b": "every other host",
    r"\bevery two hosts\b": "each pair of hosts",
    r"\blooks? after\b": "handles",
    r"\bparted by\b": "separated by",
    r"\bwritten over\b": "overwritten",
    r"\bcolours?\b": "color",
    r"\b(?:initialis|utilis|synchronis|serialis|normalis)\w+\b": "American spelling",
    r"\btime-outs?\b": "timeout",
    r"\bpictures?\b(?= (?:of pairs|written))": "plot",
    r"\b: want \w+": "must be",
}
# What only people who work on the code need to know; CONTRIBUTING has the glossary.
FOR_USERS = {
    r"\bcensus\b": "leftover check",
    r"\bguardians?\b": "helper",
    r"\bsupervisors?\b": "helper",
    r"\bkeepers?\b": "helper",
    r"\bladder\b": "the steps by which a run is stopped",
    r"(?<![-_.])\bmaster\b(?![-_.])": "node 0",
    r"\bbeats?\b": "heartbeat",
}
FOR_DEVELOPERS = ("CONTRIBUTING.md", "flows.md", "decisions")
# Constructions and words that docs/prose.md replaces, in documents for users and in help; messages still have some.
HABITS = {
    r"\blines? (?:says?|names?|tells?|counts?|lists?)\b": "`launch` reports it",
    r"\b(?:end|cost|harm|lose)s? (?:no|none|nobody|nothing)\b": "doesn't stop the run, doesn't count toward N",
    r", also\b": "even, too, or a sentence that names the case",
    r"\bof (?:its|their|his|her|my|your) own\b": "separate, its own X",
    r"\b(?:of yours|of his|of theirs)\b": "your X",
    r"\b(?:controlling host|host that controls)\b": "controller host",
    r"\bremed(?:y|ies)\b": "fix",
    r"\b(?:with proof|proves? that|proved that)\b": "verify",
    r"\bbeside\b": "next to",
    r"\bstart(?:s|ed)? (?:it |them |the run |a failed run )?again\b": "restart",
    r"\bhas the last word\b": "overrides",
}
# Sentences that a habit's pattern finds and that are good English: a file, and a part of the sentence.
ALLOWED = {
    "TROUBLESHOOTING.md": (
        "on a Mac, also System Settings",
        "start the run again",  # a run that is over
    ),
}
# Lines to paste, in blocks and in cells of tables.
COMMAND = re.compile(r"^ {4}((?:launch|test-distributed) .*)$|`((?:launch|test-distributed) [^`\n]*)`", re.MULTILINE)
RULES = "docs/prose.md"  # it quotes what it forbids


def _prose(text: str) -> str:
    """Return a Markdown text with code, link targets and URLs blanked, so that line numbers stay right."""
    hidden = re.compile(r"```.*?```|^(?: {4}|\t).*$|`[^`\n]*`|\]\([^)\n]*\)|https?://\S+", re.DOTALL | re.MULTILINE)
    return hidden.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def _comments(text: str) -> str:
    return "\n".join(line.partition("#")[2] for line in text.splitlines())


def _literals(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text and whether it is a docstring, of each string that is prose: one with a space."""
    nodes = list(ast.walk(tree))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and " " in node.value.strip() and not node.value.startswith("import "):  # a program
            yield node.lineno, inspect.cleandoc(node.value), id(node) in docstrings


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def _find(text: str, words: dict[str, str], first_line: int = 1) -> Iterator[tuple[int, str]]:
    for pattern, better in words.items():
        for match in _compile(pattern).finditer(text):
            yield first_line + text.count("\n", 0, match.start()), f"{match.group()!r}: {better}"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _faults(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    if path.suffix == ".py" and path in MODULES:
        found = [
            fault
            for line, literal, is_docstring in _literals(ast.parse(text))
            for fault in _find(_prose(literal), EVERYWHERE if is_docstring else EVERYWHERE | FOR_USERS, line)
        ]
    elif path.suffix == ".md":
        is_for_developers = any(name in path.parts for name in FOR_DEVELOPERS)
        found = list(_find(_prose(text), EVERYWHERE if is_for_developers else EVERYWHERE | FOR_USERS))
    else:
        found = list(_find(_comments(text), EVERYWHERE | FOR_USERS))
    return [f"{_name(path)}:{line}: {words}" for line, words in sorted(set(found))]


def _commands() -> list[click.Command]:
    parent = click.Context(command_group.launch, **command_group.launch.context_settings)
    found = [command_group.launch.get_command(parent, name) for name in COMMANDS]
    return [*filter(None, found), collectives_command]


def _is_for_users(path: Path) -> bool:
    return _name(path) != RULES and not any(name in path.parts for name in FOR_DEVELOPERS)


def _bare_ranges(text: str) -> list[str]:
    """Return the lines to paste with a range such as gpu[1-4] outside of quotes, which zsh refuses."""
    commands = [block or cell for block, cell in COMMAND.findall(text)]
    return [
        command for command in commands if re.search(r"\w\[\d", re.sub(r"'[^']*'", "", command.partition("  #")[0]))
    ]


@pytest.mark.parametrize("path", sorted(filter(_is_for_users, {*DOCUMENTS})), ids=_name)
def test_documents_have_no_habits(path: Path) -> None:
    text = path.read_text("utf-8")
    for allowed in ALLOWED.get(_name(path), ()):
        assert allowed in text, f"no longer needed: {allowed}"
        text = text.replace(allowed, "")
    assert [f"{_name(path)}:{line}: {words}" for line, words in _find(_prose(text), HABITS)] == []


@pytest.mark.parametrize("command", [command_group.launch, *_commands()], ids=lambda command: command.name)
def test_help_has_no_habits(command: click.Command) -> None:
    context = click.Context(command, info_name=command.name, **command_group.launch.context_settings)
    text = command.get_help(context)
    assert list(_find(text, EVERYWHERE | FOR_USERS | HABITS)) == []
    assert not re.search(r"\bnode[12]\b", text), "example hosts are gpu1 and gpu2"
    assert _bare_ranges(text.replace("  launch", "    launch")) == []


@pytest.mark.parametrize("path", sorted(DOCUMENTS), ids=_name)
def test_ranges_in_lines_to_paste_are_quoted(path: Path) -> None:
    assert _bare_ranges(path.read_text("utf-8")) == []


def test_the_habits_find_the_examples_of_the_rules() -> None:
    for example in (
        "a message, and one line says so.",
        "a disk that is full or hangs ends no run.",
        "it costs none of N, also without --restarts.",
        "what earlier runs of yours left",
        "a directory of its own",
    ):
        assert list(_find(example, HABITS)), example


def test_the_quotes_of_a_range_are_seen() -> None:
    assert _bare_ranges("    launch check --hosts gpu[1-4]\n| `launch check --hosts gpu[1-4]` | |\n")
    assert not _bare_ranges("    launch check --hosts 'gpu[1-4]'  # of gpu[1-4]\n")


@pytest.mark.parametrize(
    "path", sorted(path for path in {*DOCUMENTS, *COMMENTED, *MODULES} if path.is_file()), ids=_name
)
def test_one_term_for_each_thing(path: Path) -> None:
    assert _faults(path) == []
