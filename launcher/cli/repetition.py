"""How a run was typed, as this machine keeps it, and the run that `launch again` makes of that.

No secret is kept: of --env only the name, so that the value comes from the environment again, and `***` of any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.command_table import DEFAULT_COMMAND, load_command
from launcher.cli.mistakes import part_words
from launcher.cli.options.command import TYPED_WORDS
from launcher.cli.options.launcher_toml import current_directory
from launcher.cli.options.request import FILE, Option, Place, Request, settle_words
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import DEFAULT_PROGRAM, TRAINER_MODULE, Job
from launcher.job.tree import NAME_CHARACTERS
from launcher.job.variables import HIDDEN, hide_secrets, is_secret
from launcher.output.output_streams import tell
from launcher.transports.base import TransportSettings

if TYPE_CHECKING:
    from launcher.runs.run_json import CodeVersion
    from launcher.runs.run_list import RunList

AGAIN_VARIABLE = "LAUNCH_AGAIN_OF"
_CHECKPOINTS = "/checkpoints"
_FAREWELL_S = 5.0  # for the code to be kept, at the end of a run
_LOGIN = ("name", "user", "port", "enter")  # of a host
_ON_THIS_MACHINE = ("singlenode", "node", "demo")


@dataclass(frozen=True, slots=True)
class Repetition:
    """What `launch again` repeats: the object of click's context."""

    run_id: str
    first_id: str  # of the runs that continue each other
    origin: Mapping[str, Any]
    continues: bool  # the run has not succeeded
    has_version: bool  # the commit of its code is kept
    listing: bytes | None = None  # of --same-code


def find_repetition() -> Repetition | None:
    """Return what this command repeats, if `launch again` has called it."""
    context = click.get_current_context(silent=True)
    return context.find_object(Repetition) if context is not None else None


# ---- what was typed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Typed:
    """A command line: the values of the options that were typed, as text, and the program with its arguments."""

    command: str
    options: Mapping[str, Any]  # by name: a text, of a switch whether it is on, of a list all its texts
    words: tuple[str, ...]

    @property
    def rest(self) -> list[str]:
        """The words after the name of the command."""
        return [*write_options(load_command(self.command), self.options), *part_words(self.words)]

    @property
    def line(self) -> list[str]:
        """The words to type, after `launch`."""
        return [*([] if self.command == DEFAULT_COMMAND else [self.command]), *self.rest]


def parse_options(command: click.Command, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options among these words as text, by their names, and the other words."""
    context = click.Context(command, info_name=f"launch {command.name}", **command.context_settings)
    settled = settle_words(words, [each for each in command.params if isinstance(each, click.Option)])
    found, rest, _ = command.make_parser(context).parse_args(settled)
    names = {each.name for each in command.params if isinstance(each, Option)}
    script = found.get("words", ())  # click has a sentinel for none
    rest += script if isinstance(script, list | tuple) else ()
    return {name: value for name, value in found.items() if name in names}, rest


def write_options(command: click.Command, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words for the values of options."""
    options = {each.name: each for each in command.params if isinstance(each, Option)}
    for name, value in values.items():
        if name not in options:  # an earlier version had it
            flag = f"--{name.replace('_', '-')}"
            raise click.NoSuchOption(flag, ctx=click.Context(command, info_name=f"launch {command.name}"))
        option = options[name]
        if option.is_flag:
            yield (option.opts if value else option.secondary_opts)[0]
            continue
        for text in value if option.multiple else [value]:
            is_apart = text and not text.startswith("-") and not option.may_stand_alone
            yield from (option.flag, text) if is_apart else (f"{option.flag}={text}",)


def read_typed() -> Typed:
    """Return what was typed for this command, without secrets."""
    context = click.get_current_context()
    words, found = tuple(context.params.get("words") or ()), _parse_typed(context)
    options = {each.name: each for each in context.command.params if isinstance(each, Option)}
    kept = {name: _hide(options[name], value) for name, value in found.items()}
    return Typed(str(context.command.name), kept, tuple(hide_secrets(words)))


def _parse_typed(context: click.Context) -> dict[str, Any]:
    typed, words = context.meta.get(TYPED_WORDS, ()), context.params.get("words") or ()
    return parse_options(context.command, typed[: len(typed) - len(words)])[0]


def _hide(option: Option, value: Any) -> Any:
    """Return the value of an option without secrets; of a secret in --env, its name: the value is taken from there."""
    if option.name == "env":
        return [_hide_variable(text) for text in value]
    if isinstance(value, bool):
        return value
    texts = value if option.multiple else [value]
    hidden = [HIDDEN if option.is_secret else hide_secrets([option.flag, each])[1] for each in texts]
    return hidden if option.multiple else hidden[0]


def _hide_variable(text: str) -> str:
    name, equals, value = text.partition("=")
    return name if equals and is_secret(name, value) else text


def describe_origin(request: Request) -> dict[str, Any]:
    """Return the first values of run.json; secrets in the command line are hidden."""
    repetition = find_repetition()
    return {
        "name": request.name,
        "command": shlex.join([*name_program(), *hide_typed(sys.argv[1:])]),
        "directory": str(current_directory()),
        "user": _user(),
        "launch_host": socket.gethostname(),
        "git": None,
        "again_of": repetition.run_id if repetition is not None else None,
    }


def hide_typed(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `***` for each secret."""
    return hide_secrets([*map(_hide_notify, words, ["", *words])])


def _hide_notify(word: str, before: str) -> str:
    """Return a word without the command of --notify, also one that a later --notify replaces.

    A webhook is a secret, whatever it looks like.
    """
    if word.startswith("--notify="):
        return f"--notify={HIDDEN}"
    return HIDDEN if before == "--notify" else word


def name_program() -> list[str]:
    """Return the words that start this program again: `launch`, its path, or `python -m launcher`."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return [sys.orig_argv[0], "-m", typed.parent.name]
    return [typed.name if shutil.which(typed.name) == sys.argv[0] else sys.argv[0]]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container
        return str(os.geteuid())


# ---- what is kept ----------------------------------------------------------------------------------------------------


def describe_typed(run_id: str, job: Job, hosts: Sequence[Host], request: Request) -> dict[str, Any]:
    """Return how this command was typed and its hosts are reached, as JSON values."""
    from launcher.runs.execution import find_checkpoints

    repetition, checkpoints = find_repetition(), find_checkpoints(job, run_id)
    return {
        **asdict(read_typed()),
        "directory": str(current_directory()),
        "launch_host": socket.gethostname(),
        "hosts": [host.name for host in hosts],
        "tree": None if job.tree is None else job.tree.hash,
        "is_trainer": job.program.is_trainer,
        "is_default": job.program == DEFAULT_PROGRAM,
        "save_dir": None if checkpoints is None else checkpoints.removesuffix(_CHECKPOINTS),
        "reach": {
            "hosts": [{name: getattr(host, name) for name in _LOGIN} for host in hosts],
            "transport": request.transport,
            "ssh_config": None if request.ssh_config is None else str(request.ssh_config.absolute()),
            "ask_password": request.ask_password,
            "python": request.python,
        },
        "first": repetition.first_id if repetition is not None and repetition.continues else None,
    }


@contextlib.contextmanager
def keep_origin(runs: RunList, run_id: str, job: Job, hosts: Sequence[Host], request: Request) -> Iterator[None]:
    """Keep how this run was typed, and the code that it sends, while the block runs; see `describe_typed`."""
    from launcher.concurrency import start_thread
    from launcher.runs.run_list import ORIGIN

    runs.keep(run_id, ORIGIN, json.dumps(describe_typed(run_id, job, hosts, request)).encode())
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


def keep_version(runs: RunList, run_id: str, version: CodeVersion) -> None:
    """Keep the commit of a run's code, and whether it differs from that."""
    from launcher.runs.run_list import CODE

    runs.keep(run_id, CODE, json.dumps(asdict(version)).encode())


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
    except (AttributeError, LookupError, TypeError, ValueError):
        raise _describe_unkept(run_id) from None


def _describe_unkept(run_id: str) -> UsageError:
    text = f"how run {run_id} was started isn't kept on this machine"
    return UsageError(text, "use the machine where it was started, or start it as its run.json says")


def read_reach(runs: RunList, run_id: str) -> tuple[dict[str, Host], TransportSettings | None, str | None]:
    """Return the hosts and spares of a run by name, how it reached them (None: without a login), and its --python."""
    origin = read_origin(runs, run_id)
    try:
        reach = origin["reach"]
        hosts = {each["name"]: Host(**{name: each[name] for name in _LOGIN}) for each in reach["hosts"]}
        config = Path(reach["ssh_config"]) if reach["ssh_config"] else None
        settings = TransportSettings(reach["transport"], config, bool(reach["ask_password"]))
        return hosts, None if origin["command"] in _ON_THIS_MACHINE else settings, reach["python"]
    except (AttributeError, LookupError, TypeError, ValueError):  # it is damaged, or an earlier version wrote it
        raise _describe_unkept(run_id) from None


def _read_json(runs: RunList, run_id: str, name: str) -> dict[str, Any]:
    """Return a kept JSON object; empty if there is none."""
    try:
        found = json.loads(runs.read_kept(run_id, name) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def typed_of(origin: Mapping[str, Any]) -> Typed:
    """Return a kept command line; raise AttributeError, LookupError, TypeError or ValueError if it is none."""
    options = {str(name): _read_value(value) for name, value in origin["options"].items()}
    return Typed(str(origin["command"]), options, tuple(map(str, origin["words"])))


def _read_value(value: Any) -> Any:
    return [*map(str, value)] if isinstance(value, list) else value if isinstance(value, bool) else str(value)


# ---- what becomes of it ----------------------------------------------------------------------------------------------


def override(typed: Typed, given: Mapping[str, Any]) -> Typed:
    """Return the command line with these options instead of its own, or, of a list, beside them.

    A later `NAME=...` replaces that of the same name. A relative path means one from here, wherever the run was typed.
    """
    options = {each.name: each for each in load_command(typed.command).params if isinstance(each, Option)}
    rivals = {name for name in given for name in options[name].rivals}
    rivals |= {name for name in typed.options if name in options and not given.keys().isdisjoint(options[name].rivals)}
    merged = {name: value for name, value in typed.options.items() if name not in rivals}
    for name, value in given.items():
        new = _anchor(options[name], value)
        if options[name].multiple:
            named = {text.partition("=")[0] for text in new}
            new = [*(text for text in merged.get(name, ()) if text.partition("=")[0] not in named), *new]
        merged[name] = new
    return replace(typed, options=merged)


def _anchor(option: Option, value: Any) -> Any:
    """Return the value of an option with an absolute path, if it is one of this machine."""
    if isinstance(value, list):
        return [_anchor(option, each) for each in value]
    is_path = option.place is Place.HERE or option.type is FILE
    if isinstance(value, bool) or not is_path or not value or value.startswith(("/", "~")):
        return value
    return os.path.normpath(current_directory() / value)


def lacks_secret(typed: Typed) -> bool:
    """Tell whether a word was a secret that can't be found elsewhere."""
    return HIDDEN in repr([*typed.options.values(), *typed.words])


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
        return replace(typed, options={**typed.options, "is_module": True}, words=(TRAINER_MODULE, *added))
    return replace(typed, words=(*typed.words, *added))


def _as_flag(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def tell_changes(hosts: Sequence[Host], job: Job) -> None:
    """If this run repeats another one, print which code it runs, and whether it has other hosts."""
    repetition = find_repetition()
    if repetition is None:
        return
    run_id = repetition.run_id
    tell(f"launch: {_describe_code(repetition, job)}")
    names_now, names_then = [host.name for host in hosts], repetition.origin["hosts"]
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
        had = f"had {before[:NAME_CHARACTERS]}, and --same-code uses it" if isinstance(before, str) else "sent none"
        return f"the code is that of now ({job.tree.name}); run {run_id} {had}"
    if job.program.is_trainer:
        return "the built-in trainer is that of now"
    hint = f"; launch fetch --code {run_id} tells what run {run_id} had" if repetition.has_version else ""
    return f"the code is what the hosts have now{hint}"


def name_continued(job: Job) -> Job:
    """Return the job with the variable that tells the ranks which run theirs continues, if it does."""
    repetition = find_repetition()
    if repetition is None or not repetition.continues:
        return job
    return replace(job, env={AGAIN_VARIABLE: repetition.first_id, **job.env})


def command_line(origin: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the line to paste into a shell; words: after `launch`, without secrets."""
    return f"cd {shlex.quote(origin['directory'])} && {shlex.join(['launch', *words])}"
