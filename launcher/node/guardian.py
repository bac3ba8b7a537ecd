"""The first process on a node: it starts the supervisor, waits, and ends the run if the supervisor is killed.

It is a subreaper, so the orphans of a dead supervisor become its children and none is lost.
It speaks on stderr only: the supervisor may have died in the middle of a message on stdout.
"""

from __future__ import annotations

import os

from launcher.node import signals
from launcher.node.processes import proc
from launcher.node.processes.owned import Owned, become_subreaper, read_children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_FORWARDED = (signals.SIGTERM, signals.SIGHUP, signals.SIGINT)


def main(nonce: str) -> NoReturn:
    """Run the node's side of one conversation; never returns."""
    # Two pipes: one tells the supervisor that we live, into the other it writes what we need if it dies.
    life_read, life_write = os.pipe()
    handover_read, handover_write = os.pipe()
    # A third is at its end when both are gone: for who starts the ranks, and is then the last that can end them.
    keepers_read, keepers_write = os.pipe()
    guardian = os.getpid()
    # The login's shell has become this process, with the children that its files had started in the background.
    found = [proc.read_process(child) for child in read_children()]
    strangers = {process.pid: process.started for process in found if process is not None}
    become_subreaper()
    pid = os.fork()
    if pid == 0:
        os.close(life_write)
        os.close(handover_read)
        _run_supervisor(life_read, handover_write, guardian, (keepers_read, keepers_write), strangers)
    os.close(life_read)
    os.close(handover_write)
    os.close(keepers_read)
    _release_stdout()
    # A polite end is the supervisor's business; it has the terminal's signals blocked out as well.
    for number in _FORWARDED:
        signals.signal(number, lambda number, frame: _forward(pid, number))
    status = _wait_for(pid)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        os._exit(0)
    _clean_up(nonce, _read_handover_log(handover_read), status, strangers)
    os._exit(1)


def _run_supervisor(
    life_fd: int, handover_fd: int, guardian: int, keepers_fds: tuple[int, int], strangers: dict[int, int]
) -> NoReturn:
    from launcher.node import supervisor

    try:
        become_subreaper()
        supervisor.Supervisor(life_fd, handover_fd, guardian, keepers_fds, strangers).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must not return into its parent's code
        import traceback

        traceback.print_exc()
        os._exit(1)


def _release_stdout() -> None:
    """Leave stdout to the supervisor, so that its end of file means the supervisor's death."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _forward(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _wait_for(supervisor: int) -> int:
    """Reap children, orphans too, until the supervisor ends; return its status."""
    while True:
        # Once it is reaped its number may be another's, who shall not get what was meant for it.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # it waits
        if ended.si_pid == supervisor:
            for number in _FORWARDED:
                signals.signal(number, signals.SIG_IGN)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == supervisor:
            return status


def _read_handover_log(fd: int) -> dict[str, Any]:
    """Return what the supervisor wrote down for this case."""
    import json

    os.set_blocking(fd, False)
    text = b""
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            break
        if not data:
            break
        text += data
    handover_log: dict[str, Any] = {"processes": []}
    for line in text.splitlines():
        entry = json.loads(line.decode())
        if "pid" in entry:
            handover_log["processes"].append(entry)
        else:
            handover_log.update(entry)
    return handover_log


def _clean_up(nonce: str, handover_log: dict[str, Any], status: int, strangers: dict[int, int]) -> None:
    from launcher.node import messages
    from launcher.node.processes import ladder, workers

    ending = workers.describe_status(status)
    _say(nonce, messages.encode(messages.FAILED, text="its supervisor died", supervisor=ending))
    left: list[proc.Process] = []
    if "mark" in handover_log:
        owned = Owned(handover_log["mark"], [os.getpid()])
        owned.strangers = strangers
        for entry in handover_log["processes"]:
            process = proc.read_process(entry["pid"])
            if process is None or process.started != entry["started"]:
                continue
            if entry["rank"] is None:
                owned.set_starter(process)
            else:
                owned.add_rank(entry["rank"], process)
        beat = messages.encode(messages.BEAT)
        left = ladder.take_steps(ladder.descend(owned, handover_log["stop_timeout_s"]), lambda: _say(nonce, beat))
        if not left:  # else `launch clean` goes by it
            workers.remove_folder(handover_log["folder"])
    found = [[process.pid, process.name, process.state] for process in left]
    _say(nonce, messages.encode(messages.CENSUS, left=found, supervisor=ending))


def _say(nonce: str, message: bytes) -> None:
    try:
        os.write(2, b"\n" + nonce.encode() + b" " + message)
    except OSError:
        pass  # nobody listens any more
