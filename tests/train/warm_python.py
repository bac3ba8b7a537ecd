"""A Python that has imported torch, and forks a process for each rank of a test: an import takes longer than most runs.

It reads orders from a socket, as JSON. An order to start comes with the descriptors of stdout and stderr, and is
answered by the process id; an order with a process id by its exit code, as `subprocess` has it, or null.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed.checkpoint.state_dict
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel  # noqa: F401 - for those that are forked


def serve(sock: socket.socket) -> None:
    """Start processes and tell how they ended, until the other end is closed."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(sock, 1 << 20, 2)
        if not data:
            return
        order = json.loads(data)
        if "pid" in order:
            pid, status = os.waitpid(order["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                sock.close()
                become(order, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        sock.send(json.dumps(answer).encode())


def become(order: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Be a process that was started with these arguments; leave without a look back, as the ranks themselves do."""
    os.setsid()
    for place, descriptor in enumerate((stdout, stderr), start=1):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    exit_code = 1
    try:
        run(order["argv"])
        exit_code = 0
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def run(argv: list[str]) -> None:
    """Run a module, after `-m`, or a script, as `python` does."""
    if argv[0] == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(argv[0]).parent), argv
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
