"""Make docs/run.svg: a real run on two hosts, each of which is this machine, as a terminal shows it.

.venv/bin/python docs/picture.py
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

TRAINER = """\
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group()
rank, loss = dist.get_rank(), torch.tensor(7.1)


def step(number):
    dist.all_reduce(loss)
    print(f"step {number} loss {7.1 - number / 50:.2f}", flush=True)
    if rank == 3 and number == 42:
        raise ValueError(f"the optimizer met a NaN at step {number}")


for number in range(40, 44):
    step(number)
    time.sleep(0.3)
"""
COMMAND = "launch --hosts gpu1,gpu2 --nproc 2 --cpu train.py --lr 3e-4"
COLUMNS = 110


def record(folder: Path, home: Path) -> bytes:
    """Run COMMAND on a terminal of its own and return what it showed."""
    shown = bytearray()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        os.chdir(folder)
        # Each host stands for a machine of its own, as one that is logged in to at this address does.
        login = "127.0.0.1 1 127.0.0.1 22"
        os.environ.update(HOME=str(home), TERM="xterm-256color", SSH_CONNECTION=login)
        code = "from launcher.cli.main import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", code, *COMMAND.split()[1:]])
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # Linux's way to say that nobody holds the other side any more
            break
        if not data:
            break
        shown += data
    os.waitpid(pid, 0)
    return bytes(shown)


def main() -> None:
    """Write the picture beside this file."""
    with tempfile.TemporaryDirectory() as name:
        home, folder = Path(name) / "home", Path("/tmp/train")
        home.mkdir()
        (home / "ssh_config").write_text("Host gpu*\n  HostName 127.0.0.1\n  UserKnownHostsFile none\n")
        folder.mkdir(exist_ok=True)
        (folder / "launcher.toml").write_text(f'ssh-config = "{home}/ssh_config"\n')
        (folder / "train.py").write_text(TRAINER)
        shown = record(folder, home)
    text = shown.decode().replace(sys.executable, "/opt/env/bin/python")  # wherever this checkout is
    lines = text.replace("\r\n", "\n").split("\n")
    lines = [line.rpartition("\x1b[K")[2] for line in lines]  # what the next one drew over
    # What is said only because both hosts are this machine.
    lines = [line for line in lines if "launcher.toml (" not in line and "is this machine" not in line]
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")))
    console.print(Text.from_ansi("\n".join(lines).strip("\n")))
    Path(__file__).with_name("run.svg").write_text(console.export_svg(title="launch"))


if __name__ == "__main__":
    main()
