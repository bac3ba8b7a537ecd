"""How a run was typed, as this machine keeps it, and the run that `launch again` makes of that.

No secret is kept: of --env only the name, so that the value comes from the environment again, and of --notify only
that it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND
from launcher.cli.error_lines import tell
from launcher.cli.options.gone import renew
from launcher.cli.options.help import TYPED_WORDS
from launcher.cli.options.request import FILE, KEYS, Option, Place, settle_words
from launcher.cli.options.toml_files import current_directory
from launcher.clock import wall_clock
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names, shown
from launcher.job.job import DEFAULT_PROGRAM, TRAINER_MODULE, Job
from launcher.job.tree import NAME_CHARACTERS
from launcher.job.variables import HIDDEN, hide_secrets, is_secret
from launcher.wording import count, listed

if TYPE_CHECKING:
    from launcher.runs.run_json import CodeVersion
    from launcher.runs.run_list import RunList

AGAIN_VARIABLE = "LAUNCH_AGAIN_OF"
_CHECKPOINTS = "/checkpoints"
_FAREWELL_S = 5.0  # for the code to be kept, at the end of a run


@dataclass(frozen=True, slots=True)
class Typed:
    """The words of a command line: each option with its value, and the program with its arguments.

    Secrets are hidden. notified: --notify was among the options.
    """

    command: str
    options: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    has_dashes: bool = False  # `--` between both
    notified: bool = False

    @property
    def line(self) -> list[str]:
        """The words to type, after `launch`."""
        is_named = self.command != DEFAULT_COMMAND or (self.rest and self.rest[0] in COMMANDS)
        return [*([self.command] if is_named else []), *self.rest]

    @property
    def rest(self) -> list[str]:
        """The words after the name of the command."""
        dashes = ["--"] if self.has_dashes else []
        return [*(word for group in self.options for word in group), *dashes, *self.words]

    @property
    def lacks_secret(self) -> bool:
        """Whether a word was a secret that can't be found elsewhere."""
        groups = [*(each for each in self.options if not _name_variable(each)), self.words]
        return any(HIDDEN in word for group in groups for word in group)


@dataclass(frozen=True, slots=True)
class Repetition:
    """What `launch again` repeats: the object of click's context."""

    run_id: str
    first_id: str  # of the runs that continue each other
    origin: Mapping[str, Any]
    version: CodeVersion | None  # None: not known
    patch: bytes  # what differed from the commit
    continues: bool  # the run has not succeeded
    listing: bytes | None = None  # of --same-code


def find_repetition() -> Repetition | None:
    """Return what this command repeats, if `launch again` has called it."""
    context = click.get_current_context(silent=True)
    return context.find_object(Repetition) if context is not None else None


# ---- what is kept ----------------------------------------------------------------------------------------------------


def read_typed(command: click.Command, typed: Sequence[str], words: Sequence[str]) -> Typed:
    """Return what was typed; typed: without the name of the command; words: those of the program, its last ones."""
    groups = group_options(command, typed[: len(typed) - len(words)])
    has_dashes = groups[-1:] == [(None, ("--",))]
    kept, notified = [], False
    for option, group in groups[: len(groups) - has_dashes]:
        if option is not None and option.is_secret:
            notified = True
        elif option is not None and option.name == "env":
            kept.append(hide_value(group))
        else:
            kept.append(tuple(hide_secrets(group)))
    return Typed(str(command.name), tuple(kept), tuple(hide_secrets(words)), has_dashes, notified)


def group_options(command: click.Command, words: Sequence[str]) -> list[tuple[Option | None, tuple[str, ...]]]:
    """Return each option with its words: the flag, and its value if that is a word of its own."""
    options = [each for each in command.params if isinstance(each, Option)]
    words = settle_words(words, options)
    flags = {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}
    groups: list[tuple[Option | None, tuple[str, ...]]] = []
    index = 0
    while index < len(words):
        flag, equals, _ = words[index].partition("=")
        option = flags.get(flag)
        size = 2 if option is not None and not option.is_flag and not equals else 1
        groups.append((option, tuple(words[index : index + size])))
        index += size
    return groups


def hide_value(group: tuple[str, ...]) -> tuple[str, ...]:
    """Return --env with the name alone of a variable that is a secret."""
    name, equals, value = _name_value(group).partition("=")
    return ("--env", name) if equals and is_secret(name, value) else group


def _name_value(group: Sequence[str]) -> str:
    return group[1] if len(group) > 1 else group[0].partition("=")[2]


def _name_variable(group: Sequence[str]) -> str:
    """Return the name of the variable that --env sets; empty for any other option."""
    is_env = group[0] == "--env" or group[0].startswith("--env=")
    return _name_value(group).partition("=")[0] if is_env else ""


def describe_typed(job: Job, hosts: Sequence[Host], checkpoints: str | None, until_at: float | None) -> dict[str, Any]:
    """Return how this command was typed, as JSON values.

    checkpoints: where the built-in trainer saves, if known; until_at: what --until meant.
    """
    context = click.get_current_context()
    typed = read_typed(context.command, context.meta.get(TYPED_WORDS, ()), context.params.get("words") or ())
    repetition = find_repetition()
    return {
        "command": typed.command,
        "options": typed.options,
        "words": typed.words,
        "has_dashes": typed.has_dashes,
        "notified": typed.notified,
        "directory": str(current_directory()),
        "launch_host": socket.gethostname(),
        "hosts": [host.name for host in hosts],
        "defaults": _describe_defaults(context),
        "tree": None if job.tree is None else job.tree.hash,
        "is_trainer": job.program.is_trainer,
        "is_default": job.program == DEFAULT_PROGRAM,
        "save_dir": None if checkpoints is None else checkpoints.removesuffix(_CHECKPOINTS),
        "fetch": [*(context.params.get("fetch") or ())],
        "until_at": until_at,
        "first": repetition.first_id if repetition is not None and repetition.continues else None,
    }


def _describe_defaults(context: click.Context) -> dict[str, Any]:
    """Return what launcher.toml sets for this command, without secrets."""
    names = {param.name for param in context.command.params} | {"script"}
    return {
        name: [_hide_entry(name, str(each)) for each in value] if isinstance(value, list) else _hide_entry(name, value)
        for name, value in (context.default_map or {}).items()
        if name in names
    }


def _hide_entry(name: str, value: Any) -> Any:
    text = str(value)
    variable, equals, content = text.partition("=")
    hides = KEYS[name].is_secret or is_secret(name, text) or (bool(equals) and is_secret(variable, content))
    return HIDDEN if hides else value


@contextlib.contextmanager
def keep_origin(
    runs: RunList, run_id: str, job: Job, hosts: Sequence[Host], checkpoints: str | None, until_at: float | None
) -> Iterator[None]:
    """Keep how this run was typed, and the code that it sends, while the block runs; see `describe_typed`."""
    from launcher.concurrency import start_thread
    from launcher.runs.run_list import ORIGIN

    runs.keep(run_id, ORIGIN, json.dumps(describe_typed(job, hosts, checkpoints, until_at)).encode())
    thread = None
    if job.tree is not None:
        with contextlib.suppress(LauncherError):  # no thread is left; the run itself will say so, or do without
            thread = start_thread(partial(_keep_tree, runs, run_id, job), "code", lambda error: None)
    try:
        yield
    finally:
        if thread is not None:
            thread.join(_FAREWELL_S)


def _keep_tree(runs: RunList, run_id: str, job: Job) -> None:
    from launcher.runs.run_list import LISTING
    from launcher.sync.kept_code import keep_contents

    assert job.tree is not None  # the caller has looked
    with contextlib.suppress(OSError):  # a full disk, or a directory that others can write: the run needs none of this
        keep_contents(job.tree, os.environ)
        runs.keep(run_id, LISTING, job.tree.listing)


def keep_version(runs: RunList, run_id: str, version: CodeVersion, patch: bytes) -> None:
    """Keep the commit of a run's code, and what differs from it."""
    from launcher.runs.run_list import CODE, PATCH

    runs.keep(run_id, CODE, json.dumps(asdict(version)).encode())
    if patch:
        runs.keep(run_id, PATCH, patch)


def read_version(runs: RunList, run_id: str) -> CodeVersion | None:
    """Return the commit of a run's code, if that is kept."""
    from launcher.runs.run_json import read_run_json
    from launcher.runs.run_list import CODE

    return read_run_json({"git": _read_json(runs, run_id, CODE)}).git


def read_origin(runs: RunList, run_id: str) -> dict[str, Any]:
    """Return how a run was typed; raise UsageError if that isn't kept here."""
    from launcher.runs.run_list import ORIGIN

    found = _read_json(runs, run_id, ORIGIN)
    try:
        typed_of(found)
        return {**found, "directory": str(found["directory"]), "hosts": [*map(str, found["hosts"])]}
    except (LookupError, TypeError, ValueError):
        text = f"how run {run_id} was started isn't kept on this machine"
        raise UsageError(text, "run launch again where it was started, or start it as its run.json says") from None


def _read_json(runs: RunList, run_id: str, name: str) -> dict[str, Any]:
    """Return a kept JSON object; empty if there is none."""
    try:
        found = json.loads(runs.read_kept(run_id, name) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def typed_of(origin: Mapping[str, Any]) -> Typed:
    """Return the words of a kept command line; raise LookupError, TypeError or ValueError if it is damaged."""
    kept = (renew([*map(str, group)]) for group in origin["options"])
    options = tuple(group for group in kept if group)
    words = tuple(map(str, origin["words"]))
    return Typed(str(origin["command"]), options, words, bool(origin["has_dashes"]), bool(origin["notified"]))


# ---- what becomes of it ----------------------------------------------------------------------------------------------


def override(typed: Typed, command: click.Command, words: Sequence[str]) -> Typed:
    """Return the command line with these options instead of its own, or beside them; raise UsageError for other words.

    An option that may be given several times is added, and --env replaces that of the same variable. A relative path
    means one from here, wherever the run was typed.
    """
    given = [(option, _anchor(option, group)) for option, group in group_options(command, words)]
    for option, group in given:
        if option is None and group[0].startswith("-"):
            raise click.NoSuchOption(
                group[0].partition("=")[0], ctx=click.Context(command, info_name=f"launch {command.name}")
            )
        if option is None:
            raise UsageError(f"launch again takes a run and options, got {shown(group[0])}", "see launch again --help")
    names = {option.name for option, _ in given if option is not None}
    rivals = {rival for option, _ in given if option is not None for rival in option.rivals}
    variables = {_name_variable(group) for _, group in given} - {""}
    kept = [
        group
        for option, group in group_options(command, [word for group in typed.options for word in group])
        if option is None
        or not (
            (option.name in names and not option.multiple)
            or option.name in rivals
            or names.intersection(option.rivals)
            or _name_variable(group) in variables
        )
    ]
    options = (*kept, *(group for _, group in given))
    return Typed(typed.command, options, typed.words, typed.has_dashes, typed.notified and "notify" not in names)


def _anchor(option: Option | None, group: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option with an absolute path, if its value is one of this machine."""
    value = _name_value(group)
    is_path = option is not None and not option.is_flag and (option.place is Place.HERE or option.type is FILE)
    if not is_path or value.startswith(("/", "~")) or not value:
        return group
    path = os.path.normpath(current_directory() / value)
    return (group[0], path) if len(group) > 1 else (f"{group[0].partition('=')[0]}={path}",)


def drop_past(typed: Typed, command: click.Command, origin: Mapping[str, Any]) -> Typed:
    """Return the command line without an --until whose time has come: 18:00 would mean that of tomorrow."""
    until_at = origin.get("until_at")
    if not isinstance(until_at, float) or until_at > wall_clock():
        return typed
    groups = group_options(command, [word for group in typed.options for word in group])
    kept = tuple(group for option, group in groups if option is None or option.name != "until")
    return replace(typed, options=kept)


def resume(typed: Typed, origin: Mapping[str, Any]) -> Typed:
    """Return the command line with which the built-in trainer continues; that of any other program is unchanged.

    `--resume auto` starts over if nothing was saved. A demo takes no words for the trainer.
    """
    if typed.command == "demo" or not origin.get("is_trainer"):
        return typed
    save_dir = origin.get("save_dir")
    has_place = not save_dir or "--save-dir" in map(_as_flag, typed.words)
    added = (*(() if has_place else ("--save-dir", str(save_dir))), "--resume", "auto")
    if origin.get("is_default"):
        return Typed(typed.command, (*typed.options, ("-m",)), (TRAINER_MODULE, *added), notified=typed.notified)
    words = (*typed.words, *added)
    return Typed(typed.command, typed.options, words, typed.has_dashes or words[0].startswith("-"), typed.notified)


def _as_flag(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def tell_changes(hosts: Sequence[Host], job: Job) -> None:
    """If this run repeats another one, print which code it runs, and what else differs.

    Raise UsageError if it lacks --notify, whose command isn't kept.
    """
    repetition = find_repetition()
    if repetition is None:
        return
    context, origin, run_id = click.get_current_context(), repetition.origin, repetition.run_id
    if origin["notified"] and context.params.get("notify") is None:
        text = f"run {run_id} had --notify, and launch doesn't keep its command, which may hold a secret"
        raise UsageError(text, f"launch again {run_id} --notify CMD, or set notify in launcher.toml")
    tell(f"launch: {_describe_code(repetition, job)}")
    before, now = origin.get("defaults") or {}, json.loads(json.dumps(_describe_defaults(context), default=str))
    if changed := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
        names = listed([key.replace("_", "-") for key in changed])
        tell(f"launch: launcher.toml has changed since run {run_id}: {names}")
    names_now, names_then = [host.name for host in hosts], origin["hosts"]
    if names_now != names_then:
        added = [name for name in names_now if name not in names_then]
        gone = [name for name in names_then if name not in names_now]
        parts = [f"with {fold_names(added)}"] * bool(added) + [f"without {fold_names(gone)}"] * bool(gone)
        tell(f"launch: the hosts differ from those of run {run_id}: {', '.join(parts) or 'in another order'}")


def _describe_code(repetition: Repetition, job: Job) -> str:
    before, run_id = repetition.origin.get("tree"), repetition.run_id
    if job.tree is not None:
        if before == job.tree.hash:
            return f"the code is that of run {run_id} ({job.tree.name})"
        if not isinstance(before, str):
            return f"the code is that of now ({job.tree.name}); run {run_id} sent none"
        was = f"run {run_id} had {before[:NAME_CHARACTERS]}"
        return f"the code is that of now ({job.tree.name}); {was}, and --same-code uses it"
    if job.program.is_trainer:
        return "the built-in trainer is that of now"
    from launcher.runs.code_version import CodeQuestion

    question, patches = CodeQuestion(job), [b""]
    question.keep(lambda version, patch: patches.append(patch))
    version = question.version()
    question.close()
    if version and (version, patches[-1]) == (repetition.version, repetition.patch):
        return f"the code is that of run {run_id} ({describe_version(version)})"
    was = f"run {run_id} had {describe_version(repetition.version)}"
    back = f" (launch fetch --code {run_id})" if repetition.version else ""
    return f"the code is that of now, {describe_version(version)}; {was}{back}"


def describe_version(version: CodeVersion | None) -> str:
    """Return commit and state of the code in words."""
    if version is None:
        return "an unknown commit"
    changed = (version.changed_files or 0) + (version.untracked_files or 0)
    more = f" and {count(changed, 'changed file')}" if changed else ""
    return f"commit {version.commit[:NAME_CHARACTERS]}{more}"


def name_continued(job: Job) -> Job:
    """Return the job with the variable that tells the ranks which run theirs continues, if it does."""
    repetition = find_repetition()
    if repetition is None or not repetition.continues:
        return job
    return replace(job, env={AGAIN_VARIABLE: repetition.first_id, **job.env})


def command_line(origin: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the line to paste into a shell; words: after `launch`, without secrets."""
    return f"cd {shlex.quote(origin['directory'])} && {shlex.join(['launch', *words])}"
