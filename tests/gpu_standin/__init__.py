"""What stands in for GPUs and NCCL where there are none: torch's own code for them runs in `enter`'s process.

It shows what waits for whom, on which side a tensor is, and what is refused; it computes on the CPU and shows no speed.
"""

from __future__ import annotations

from gpu_standin import fake_cuda, fake_nccl


def enter() -> None:
    """Let torch see GPUs and NCCL in this process; call it before anything else."""
    fake_cuda.fake()
    fake_nccl.fake()
