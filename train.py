"""Train with the built-in trainer: `python train.py`, `torchrun train.py` or `srun python train.py`.

It is the same as `python -m launcher.trainer`; all options: `python train.py --help`.
"""

from launcher.trainer.__main__ import main

if __name__ == "__main__":
    exit_code = main()

    from launcher.distributed import leave

    leave(exit_code)
