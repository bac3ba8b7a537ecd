"""Shells on a terminal, in which a test types a line and a Tab, and reads what became of the line."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from machines.patience import DEADLINE_S

ROOT = Path(__file__).parents[2]
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
_CLEAR, _TAB, _ALL, _SHOW = "\x05\x15", "\t", "\x18\x01", "\x18\x0f"  # Ctrl-E Ctrl-U, Tab, and what the setups bind
_BASH = r"""
bind '"\C-x\C-a": insert-completions'
bind -x '"\C-x\C-o": printf "LINE<%s>\n" "$READLINE_LINE"'
bind 'set bell-style none'
PS1='READY '
"""
_ZSH = r"""
setopt no_beep
all() { _main_complete; compstate[insert]=all }
show() { print -r -- "LINE<$BUFFER>" }
zle -C all complete-word all; zle -N show
bindkey -e; bindkey '^X^A' all; bindkey '^X^O' show
PS1='READY '
"""


class Shell(Protocol):
    """A shell that completes with the script of `launch completion`."""

    def list_words(self, line: str) -> list[str]:
        """Return the words that a Tab offers after this line, in the order of the shell."""

    def close(self) -> None:
        """End the shell."""


class TypedShell:
    """bash or zsh on a terminal."""

    def __init__(self, argv: list[str], setup: str, env: Mapping[str, str], folder: Path) -> None:
        self._fd, terminal = pty.openpty()
        self._process = subprocess.Popen(
            argv, stdin=terminal, stdout=terminal, stderr=terminal, env=env, cwd=folder, start_new_session=True
        )
        os.close(terminal)
        self.screen = ""
        file = Path(env["HOME"], "setup")
        file.write_text(setup)
        self._type(" . ~/setup\n")
        self._read_until("READY ")

    def complete(self, line: str) -> str:
        """Type a line and a Tab, and return the line after that."""
        return self._press(line, _TAB)

    def list_words(self, line: str) -> list[str]:
        """Return what is in the line once all words are inserted; bash leaves out what is before a `=` or `@`."""
        before, _, last = line.rpartition(" ")
        kept = last[: max(last.rfind(mark) for mark in "=@") + 1]
        words = self._press(line, _ALL).removeprefix(before).split()
        return [word if word.startswith(kept) else kept + word for word in words if word != last]

    def _press(self, line: str, key: str) -> str:
        self.screen = ""
        self._type(_CLEAR + line + key + _SHOW)
        return self._read_until(r"LINE<(.*)>\r?\n")[1]

    def _type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def _read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + DEADLINE_S
        while (found := re.search(pattern, self.screen)) is None:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in time: {self.screen!r}"
            self.screen += os.read(self._fd, 1 << 16).decode("utf-8", "replace")
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


class Fish:
    """fish, which is asked by `complete -C` what it would offer."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env, self._folder = env, folder
        place = Path(env["HOME"], ".config", "fish", "conf.d", "launch.fish")
        place.parent.mkdir(parents=True)
        place.write_text(print_script("fish", env))

    def list_words(self, line: str) -> list[str]:
        asked = ["fish", "-c", "complete -C $argv[1]", line]
        done = subprocess.run(asked, env=self._env, cwd=self._folder, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return [each.partition("\t")[0] for each in done.stdout.splitlines()]

    def close(self) -> None:
        """Each question has its own process."""


def make_program(folder: Path, name: str = "launch", entry: str = "main") -> Path:
    """Make a `launch` that runs this checkout, as an installed one would; return it."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from launcher.cli.main import {entry}\n{entry}()\n"
    )
    program.chmod(0o755)
    return program


def print_script(shell: str, env: Mapping[str, str]) -> str:
    """Return what `launch completion` prints."""
    asked = ["launch", "completion", shell]
    program = Path(env["PATH"].partition(":")[0], asked[0])
    return subprocess.run([program, *asked[1:]], env=env, capture_output=True, text=True, check=True).stdout


def open_shell(name: str, env: Mapping[str, str], folder: Path) -> TypedShell | Fish:
    """Return bash, "bash with bash-completion", zsh or fish, in a directory, with the script loaded."""
    if name == "fish":
        return Fish(env, folder)
    if name == "zsh":
        return TypedShell(["zsh", "-f", "-i"], print_script("zsh", env) + _ZSH, env, folder)
    first = f". {BASH_COMPLETION}\n" if name != "bash" else ""
    argv = ["bash", "--norc", "--noprofile", "-i"]
    return TypedShell(argv, first + print_script("bash", env) + _BASH, env, folder)
