"""Run a program as the only rank of a host of its own: `as_host.py` and what would follow `python`.

So several ranks with the real NCCL fit on one GPU: NCCL refuses two ranks on one GPU only if both have the same host
(`Duplicate GPU detected` in NCCL's init.cc), and NCCL_HOSTID says which host that is. NVIDIA doesn't support it, and
the ranks exchange data over sockets, so this shows what works, and not how fast.
Under `launch --cpu`, because for `launch` this machine has too few GPUs for so many ranks; the GPU is shown again here.
"""

from __future__ import annotations

import os
import sys

AS_HOST = {
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "NCCL_HOSTID": f"host{os.environ.get('RANK')}",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
}

if __name__ == "__main__":
    shown = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**shown, **AS_HOST})
