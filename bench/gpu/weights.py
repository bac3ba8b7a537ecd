"""Compare the weights of two model.pt to the last bit: `python bench/gpu/weights.py ONE OTHER` prints JSON.

`different` counts the bytes that differ, of `total`.
"""

from __future__ import annotations

import json
import sys

import torch


def read_bytes(path: str) -> dict[str, torch.Tensor]:
    """Return the bytes of each weight by its name: as numbers, 0 and -0 would be equal."""
    weights = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return {name: weight.contiguous().flatten().view(torch.uint8) for name, weight in weights.items()}


if __name__ == "__main__":
    one, other = (read_bytes(path) for path in sys.argv[1:])
    if one.keys() != other.keys():
        sys.exit(f"the names differ: {one.keys() ^ other.keys()}")
    different = sum(int((one[name] != other[name]).sum()) for name in one)
    print(json.dumps({"different": different, "total": sum(len(weight) for weight in one.values())}))
