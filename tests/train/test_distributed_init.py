"""Where a process stands, read from its environment, and the device it gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launcher import distributed
from launcher.distributed import DeviceError, Place, WorldError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SECOND = Place("torchrun", rank=5, world_size=8, local_rank=1, local_world_size=4)


def test_torchrun_is_found() -> None:
    assert distributed.find_place({**TORCHRUN, "PATH": "/bin"}) == SECOND


@pytest.mark.parametrize("environ", [{}, {"PATH": "/bin"}, {"RANK": "", "MASTER_ADDR": ""}])
def test_nothing_is_a_single_process(environ: dict[str, str]) -> None:
    assert distributed.find_place(environ) == Place("single process", 0, 1, 0, 1)


REMEDY = "start with torchrun, which sets all six, or unset them for a single process"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"MASTER_PORT": ""},
            "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR are set but MASTER_PORT is not: " + REMEDY,
        ),
        (
            dict.fromkeys(["WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"], ""),
            "RANK is set but WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not: " + REMEDY,
        ),
        ({"RANK": "one"}, "RANK must be a whole number, got 'one'"),
        ({"WORLD_SIZE": "-8"}, "WORLD_SIZE must be a whole number, got '-8'"),
        ({"RANK": "8"}, "RANK must be below WORLD_SIZE, got 8 of 8"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK must be below LOCAL_WORLD_SIZE, got 4 of 4"),
    ],
)
def test_half_set_or_wrong_variables_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        distributed.find_place({**TORCHRUN, **changes})
    assert str(caught.value) == message


def test_each_local_rank_gets_its_gpu() -> None:
    assert distributed.choose_device(SECOND, "nccl", 4) == torch.device("cuda", 1)
    assert distributed.choose_device(SECOND, "nccl", 1) == torch.device("cuda", 0)
    assert distributed.choose_device(SECOND, "gloo", 4) == torch.device("cpu")


def test_more_processes_than_gpus_are_explained() -> None:
    with pytest.raises(DeviceError) as caught:
        distributed.choose_device(Place("torchrun", 3, 4, 3, 4), "nccl", 2)
    assert str(caught.value) == (
        "local rank 3 has no GPU of its own: 4 processes on this host, 2 GPUs visible; "
        "NCCL would stop with 'Duplicate GPU detected', so start one process per GPU"
    )


def test_one_visible_gpu_each_is_well_and_the_same_one_is_not() -> None:
    first, second = Place("torchrun", 4, 8, 0, 2), Place("torchrun", 5, 8, 1, 2)
    store = dist.HashStore()
    store.set("gpu/4", "GPU-aaaa")
    distributed.refuse_shared_gpu(second, store, "GPU-bbbb")
    distributed.refuse_shared_gpu(first, store, "GPU-aaaa")
    with pytest.raises(DeviceError) as caught:
        distributed.refuse_shared_gpu(second, store, "GPU-aaaa")
    assert str(caught.value) == (
        "ranks 4 and 5 share GPU GPU-aaaa: NCCL would stop with 'Duplicate GPU detected', so start one process per GPU"
    )


def test_backends() -> None:
    assert distributed.choose_backend("gloo") == "gloo"
    assert distributed.choose_backend("auto") == ("nccl" if torch.cuda.is_available() else "gloo")
    with pytest.raises(WorldError) as caught:
        distributed.choose_backend("mpi")
    assert str(caught.value) == "backend must be one of auto, nccl, gloo, got 'mpi'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_nccl_without_a_gpu() -> None:
    with pytest.raises(DeviceError) as caught:
        distributed.choose_backend("nccl")
    assert str(caught.value) == ("backend nccl needs a GPU, and torch sees none here; use gloo to run on the CPU")


def test_a_single_process_has_a_group_of_one_and_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed.is_main()
    world = distributed.init("gloo", timeout_s=5)
    try:
        assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
        assert (world.device, world.backend) == (torch.device("cpu"), "gloo")
        assert world.launched_by == "single process"
        distributed.barrier()
    finally:
        distributed.shutdown()
    assert not dist.is_initialized()
    distributed.shutdown()


def test_is_main_reads_the_rank_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, expected in (("0", True), ("", True), ("3", False), ("x", False)):
        monkeypatch.setenv("RANK", rank)
        assert distributed.is_main() is expected


def test_the_file_can_be_copied_alone() -> None:
    source = distributed.__file__
    assert source is not None
    text = Path(source).read_text(encoding="utf-8")
    assert "import launcher" not in text
    assert "from launcher" not in text
