"""Train a small language model: `python -m launcher.trainer --epochs 2`, under torchrun or alone.

The whole story is in `main`: config, world, text, model, training.
"""

from __future__ import annotations

import sys
import time
import traceback

from launcher.trainer.config import ConfigError, UnreadableFileError, read_config

# The first rank that fails makes torchrun end the others: a silent one gives rank 0 time to say why.
SILENT_EXIT_S = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run the trainer and return its exit code; 2 is a wrong option, 143 an end by SIGTERM."""
    try:
        config = read_config(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        return refuse(error)

    # Torch costs a second or two: `--help` doesn't wait for it.
    from launcher import distributed
    from launcher.trainer.checkpoint import make_folder
    from launcher.trainer.data import read_text, share_from_main
    from launcher.trainer.loop import train
    from launcher.trainer.model import build_model

    def prepare() -> bytes:
        make_folder(config.save_dir)
        return read_text(config.data)

    try:
        world = distributed.init(config.distributed_backend)
        text = share_from_main(prepare, world)
        model = build_model(config).to(world.device)
        train(model, text, config, world)
    except ConfigError as error:
        return refuse(error)
    except (distributed.WorldError, distributed.DeviceError) as error:
        # Each rank has its own environment and device, so each one says what is wrong with them.
        print(error, file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001  # whatever it is, its traceback and exit code 1 must come out
        traceback.print_exc()
        distributed.leave(1)
    finally:
        distributed.shutdown()
    return 0


def refuse(error: ConfigError) -> int:
    """Say once what the user got wrong: on rank 0, or on the machine that alone can't read the file."""
    from launcher import distributed

    if distributed.is_main() or isinstance(error, UnreadableFileError):
        print(error, file=sys.stderr)
    else:
        time.sleep(SILENT_EXIT_S)
    return 2


if __name__ == "__main__":
    exit_code = main()  # --help ends in it, before torch is imported

    from launcher.distributed import leave

    leave(exit_code)  # after success as well: an orderly exit is not safe then either
