"""`python -m launcher.trainer`: under torchrun, srun or `launch`, or alone; `train.Trainer` shows all the steps."""

from __future__ import annotations

import sys

from launcher.trainer.config import read_config


def main(argv: list[str] | None = None) -> int:
    """Run the trainer and return its exit code: 2 for a wrong option, 143 after SIGTERM."""
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & {*argv}:
        read_config(["--help"])  # prints and exits, without the second or two that torch takes
    from launcher.trainer.train import run

    return run(argv)


if __name__ == "__main__":
    exit_code = main()

    from launcher.distributed import leave

    leave(exit_code)  # after success as well: gloo's threads and NCCL make a normal exit unsafe
