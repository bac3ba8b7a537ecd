"""Which GPUs a process sees: the drivers' rules for the lists in its environment."""

from __future__ import annotations

import pytest

from launcher.node.facts.gpus import UNKNOWN, find_visible

UUIDS = ("8932f937", "8932aaaa", "11ff", "2")
NVIDIA = [{"index": index, "uuid": f"GPU-{name}-0000"} for index, name in enumerate(UUIDS)]
NVIDIA.append({"index": 5, "uuid": "GPU-ee"})  # 4 has fallen off the bus
AMD = [{"index": index, "uuid": "", "is_amd": True} for index in range(4)]


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("", []),    ("3,1", [3, 1]),  ("0,9,1", [0]),
        (" 1, 2", [1, 2]),  ("5", [5]), ("1,1", []),
        ("0,GPU-2", [0]),
         ("GPU-11ff-0000,GPU-8932f", [2, 0]), ("GPU-8932", []), ("GPU-2,GPU-none,GPU-11", [3]),
         ("GPU-2,GPU-2-0000", []),
        ("MIG-5c89852c-d268", [UNKNOWN]),  ("MIG-GPU-11ff-0000/1/0", [2]),
    ],
)  # fmt: skip
def test_a_list_ends_at_the_first_entry_that_names_no_gpu(text: str, indexes: list[int]) -> None:
    assert find_visible(NVIDIA, {"CUDA_VISIBLE_DEVICES": text}) == indexes


@pytest.mark.parametrize(
    ("gpus", "env"),
    [
        (NVIDIA, {}),
        (NVIDIA, {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}),
        (AMD, {}),
        (AMD, {"HIP_VISIBLE_DEVICES": "GPU-11ff"}),  # rocm-smi is not asked for UUIDs
        ([{"index": 0, "uuid": ""}], {"CUDA_VISIBLE_DEVICES": "GPU-11ff"}),  # an old nvidia-smi
        ([], {"CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_all_are_seen_where_nothing_else_is_known(gpus: list[dict[str, object]], env: dict[str, str]) -> None:
    assert find_visible(gpus, env) is None


@pytest.mark.parametrize(
    ("env", "indexes"),
    [
        ({"HIP": "2,1"}, [2, 1]), ({"CUDA": "2"}, [2]), ({"HIP": "3", "CUDA": "2"}, [3]),
        ({"ROCR": "3,2"}, [3, 2]), ({"ROCR": "3,2", "HIP": "1"}, [2]),
        ({"ROCR": "3,2", "CUDA": "3,2"}, [3, 2]),
    ],
)  # fmt: skip
def test_amd_has_two_lists_of_its_own(env: dict[str, str], indexes: list[int]) -> None:
    assert find_visible(AMD, {f"{name}_VISIBLE_DEVICES": text for name, text in env.items()}) == indexes


def test_the_only_gpu_is_that_of_its_mig_device() -> None:
    assert find_visible(NVIDIA[:1], {"CUDA_VISIBLE_DEVICES": "MIG-5c89852c"}) == [0]
