"""Train a small model: `python -m launcher.trainer --epochs 2`, under torchrun or alone.

`main` and `loop.train` show all the steps: config, world, data, model, training.
"""

from __future__ import annotations

import sys
import time
import traceback

from launcher.trainer.config import read_config
from launcher.trainer.options import ConfigError, RunError, UnreadableFileError

# torchrun stops all ranks when the first one fails: the others wait, so that rank 0 has time to say why.
SILENT_EXIT_S = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run the trainer and return its exit code: 2 for a wrong option, 143 after SIGTERM."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        config = read_config(argv, tell_once)
    except ConfigError as error:
        return refuse(error)

    # Importing torch takes a second or two: `--help` doesn't wait for it.
    from launcher import distributed
    from launcher.trainer.loop import train

    try:
        train(config, distributed.init(config.distributed_backend, config.timeout), argv)
    except ConfigError as error:
        return refuse(error)
    except (distributed.WorldError, distributed.DeviceError) as error:
        # Each rank has its own environment and device, so each one says what is wrong with them.
        print(error, file=sys.stderr)
        return 2
    except RunError as error:
        refuse(error)
        distributed.leave(1)
    except Exception:  # noqa: BLE001  # any error must show its traceback and end with exit code 1
        traceback.print_exc()
        distributed.leave(1)
    finally:
        distributed.shutdown()
    return 0


def tell_once(line: str) -> None:
    """Print a line on rank 0; torch is imported only if there is something to print."""
    from launcher import distributed

    if distributed.is_main():
        print(line, file=sys.stderr, flush=True)


def refuse(error: ConfigError | RunError) -> int:
    """Print once what is wrong: on rank 0, or on each rank that can't read a file."""
    from launcher import distributed

    if distributed.is_main() or isinstance(error, UnreadableFileError):
        print(error, file=sys.stderr)
    else:
        time.sleep(SILENT_EXIT_S)
    return 2


if __name__ == "__main__":
    exit_code = main()  # --help exits inside it, before torch is imported

    from launcher.distributed import leave

    leave(exit_code)  # after success as well: a normal exit isn't safe then either
