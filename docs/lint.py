"""Find words that no reader should meet, and links that lead nowhere: `make lint` runs this.

Documents, help, messages and docstrings are written in plain English, with one term for each thing: docs/prose.md.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS
from launcher.cli.test_distributed import command as collectives_command

ROOT = Path(__file__).parents[1]
# Of the project's own directories alone: an environment or a cache has others.
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/**/*.md")]
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
    r"(?<!latency, )(?<!time \()\b(?:we|us|our|ours|ourselves)\b": "launch, or this machine",
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
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")

# The sections that the guide had when it was one page; bookmarks and issues refer to them.
OLD_ANCHORS = re.findall(
    r"\S+",
    """
    quick-start prerequisites hosts-and-hostfiles gpus-and-processes scripts-modules-and-commands
    getting-code-to-the-hosts which-files-are-sent data-and-outputs what-is-kept-on-the-hosts proof python-environments
    which-python-runs setup-commands environment-variables-and-secrets secrets variables-that-launch-sets
    configuration-file where-launch-looks which-files-are-accepted dry-run-and-preflight-checks dry-run
    output-logs-and-runs-without-a-terminal logs files-from-the-ranks runs-without-a-terminal restarts spares
    hosts-that-fail-often debugging-hangs noticing-a-hung-run-automatically how-the-stacks-are-read
    nccl-timeouts-and-the-flight-recorder stopping-exit-codes-and-cleaning-up cleaning-up network-ports-and-firewall
    ssh-keys-passwords-host-keys-jump-hosts keys-and-passwords host-keys jump-hosts-and-unreliable-connections
    from-a-mac transports testing-the-network slurm batch-scripts without-launch your-own-training-script
    migrating-from-torchrun-deepspeed-accelerate-pdsh-or-mpirun from-the-old-scripts lines-that-you-may-know
    launch-node-and-launch-exec security-model what-runs-on-a-host what-a-host-can-and-cant-do
    """,
)


def find_faults() -> Iterator[str]:
    """Yield each fault, as `path:line: what`."""
    for path in sorted({*DOCUMENTS, *COMMENTED, *MODULES}):
        if path.is_file():
            text = path.read_text("utf-8")
            yield from (f"{_name(path)}:{line}: {what}" for line, what in sorted({*_find_words(path, text)}))
    for command in _list_commands():
        yield from (f"launch {command.name} --help:{line}: {what}" for line, what in _find_in_help(command))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _find_words(path: Path, text: str) -> Iterator[tuple[int, str]]:
    if path in MODULES:
        for line, literal, is_docstring in _literals(ast.parse(text)):
            yield from find(_prose(literal), EVERYWHERE if is_docstring else EVERYWHERE | FOR_USERS, line)
    elif path.suffix == ".md":
        yield from find_in_document(path, text)
    else:
        comments = "\n".join(line.partition("#")[2] for line in text.splitlines())
        yield from find(comments, EVERYWHERE | FOR_USERS)


def find_in_document(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the faults of a Markdown text that is in this place."""
    anchors = list_anchors(text)
    missing = set(OLD_ANCHORS).difference(anchors) if path.name == "LAUNCH_GUIDE.md" else ()
    yield from ((1, f"the anchor {each} is gone, which bookmarks have") for each in missing)
    if path.name != "CHANGELOG.md":  # each version has an `Added`
        yield from ((1, f"two headings have the anchor {each}") for each in set(anchors) if anchors.count(each) > 1)
    yield from ((1, f"zsh refuses an unquoted range: {command}") for command in find_bare_ranges(text))
    for target, anchor in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
        place = path.parent / target if target else path
        if ":" not in target and target and not place.exists():
            yield 1, f"a link to {target}, which doesn't exist"
        elif ":" not in target and anchor:
            others = list_anchors(place.read_text("utf-8")) if target else anchors
            yield from () if anchor in others else [(1, f"a link to {target}#{anchor}, which doesn't exist")]
    if any(name in path.parts for name in FOR_DEVELOPERS):
        yield from find(_prose(text), EVERYWHERE)
        return
    named = re.findall(r"(?<![\w./])(?:scripts|examples|config|hostfiles|docker|docs)/[\w./-]*\w", text)
    is_of_now = path.name != "CHANGELOG.md"
    yield from ((1, f"{each} doesn't exist") for each in set(named) if is_of_now and not (ROOT / each).exists())
    for allowed in ALLOWED.get(_name(path), ()):
        yield from () if allowed in text else [(1, f"no longer needed in docs/lint.py: {allowed}")]
        text = text.replace(allowed, "")
    yield from find(_prose(text), EVERYWHERE | FOR_USERS | ({} if _name(path) == RULES else HABITS))


def list_anchors(text: str) -> list[str]:
    """Return the anchors of a document: those that GitHub makes of headings, and those that are written out."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    made = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return [*made, *re.findall(r'<a id="([^"]+)"></a>', text)]


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def find(text: str, words: dict[str, str], first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the line of each of these words, and what to write instead."""
    for pattern, better in words.items():
        for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE):
            yield first_line + text.count("\n", 0, match.start()), f"{match.group()!r}: {better}"


def find_bare_ranges(text: str) -> list[str]:
    """Return the lines to paste with a range such as gpu[1-4] outside of quotes, which zsh refuses."""
    commands = [block or cell for block, cell in COMMAND.findall(text)]
    return [
        command for command in commands if re.search(r"\w\[\d", re.sub(r"'[^']*'", "", command.partition("  #")[0]))
    ]


def _prose(text: str) -> str:
    """Return a Markdown text with code, link targets and URLs blanked, so that line numbers stay right."""
    hidden = re.compile(r"```.*?```|^(?: {4}|\t).*$|`[^`\n]*`|\]\([^)\n]*\)|https?://\S+", re.DOTALL | re.MULTILINE)
    return hidden.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


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


def _list_commands() -> list[click.Command]:
    parent = click.Context(cli.launch, **cli.launch.context_settings)
    found = [cli.launch.get_command(parent, name) for name in COMMANDS]
    return [cli.launch, *filter(None, found), collectives_command]


def _find_in_help(command: click.Command) -> Iterator[tuple[int, str]]:
    text = command.get_help(click.Context(command, info_name=command.name, **cli.launch.context_settings))
    yield from find(text, EVERYWHERE | FOR_USERS | HABITS | {r"\bnode[12]\b": "gpu1, gpu2"})
    yield from (
        (1, f"zsh refuses an unquoted range: {command}")
        for command in find_bare_ranges(text.replace("  launch", "    launch"))
    )


if __name__ == "__main__":
    faults = list(find_faults())
    print("\n".join(faults) or "docs/lint.py: nothing found")
    sys.exit(1 if faults else 0)
