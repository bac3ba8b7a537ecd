"""The device and the process group that a rank gets, and what trainers need besides."""

from __future__ import annotations

import dataclasses
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from machines.patience import DEADLINE_S
from machines.ports import free_port

from launcher import distributed
from launcher.distributed import World, WorldError

SECOND = World(5, 8, 1, 4, launched_by="torchrun")


def test_each_local_rank_gets_its_gpu() -> None:
    assert distributed.choose_device(SECOND, "nccl", 4) == torch.device("cuda", 1)
    assert distributed.choose_device(SECOND, "nccl", 1) == torch.device("cuda", 0)
    assert distributed.choose_device(SECOND, "gloo", 4) == torch.device("cpu")


def test_more_processes_than_gpus_are_explained() -> None:
    with pytest.raises(WorldError) as caught:
        distributed.choose_device(World(3, 4, 3, 4, host="gpu2"), "nccl", 2)
    assert str(caught.value) == (
        "local rank 3 has no GPU of its own: torch sees 2 on gpu2; fix: start one process per GPU"
    )


def meet(worlds: list[World], store: dist.Store) -> list[World | str]:
    """Let the ranks meet, each in a thread; return the world of each, or why it has none."""

    def join(world: World) -> World | str:
        try:
            return distributed.meet(world, store)
        except WorldError as error:
            return str(error)

    with ThreadPoolExecutor(len(worlds)) as ranks:
        return list(ranks.map(join, worlds))


def test_backends() -> None:
    assert distributed.choose_backend("gloo", {}) == "gloo"
    assert distributed.choose_backend("auto", {}) == ("nccl" if torch.cuda.is_available() else "gloo")
    with pytest.raises(WorldError) as caught:
        distributed.choose_backend("mpi", {})
    assert str(caught.value) == "backend must be one of auto, nccl, gloo, got 'mpi'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("error", ["Error 802: system not yet initialized", "No CUDA GPUs are available"])
def test_gpus_that_cuda_can_not_use_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def init() -> None:
        raise RuntimeError(f"{error}\nAdvice.")

    monkeypatch.setattr(torch.cuda, "init", init)  # as on a host whose driver and torch don't fit
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(distributed, "DEVICES", tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert distributed.choose_backend("auto", {}) == "gloo"
    (tmp_path / "nvidia0").touch()
    environ = {"SLURMD_NODENAME": "gpu2", "CUDA_VISIBLE_DEVICES": "0,1"}
    for backend in ("auto", "nccl"):
        with pytest.raises(WorldError) as caught:
            distributed.choose_backend(backend, environ)
        assert str(caught.value) == (
            f"gpu2 has GPUs, but torch {torch.__version__} can't use them: {error}; "
            "fix: repair the driver, or use backend gloo to train on the CPU"
        )
    assert distributed.choose_backend("gloo", environ) == "gloo"
    for hiding in ("", "-1", "NoDevFiles"):
        assert distributed.choose_backend("auto", {"CUDA_VISIBLE_DEVICES": hiding}) == "gloo"


def test_ranks_of_two_backends_do_not_wait_for_each_other() -> None:
    """Three ranks that agree, and then three of which one is on a host without a GPU."""
    store = dist.HashStore()
    ranks = [World(rank, 3, rank, 3, backend="nccl", launched_by="torchrun", host="gpu2") for rank in range(3)]
    assert meet(ranks, store) == ranks
    ranks[1] = dataclasses.replace(ranks[1], backend="gloo", host="gpu1")
    fix = "fix: let torch see a GPU for every rank, or choose gloo for all of them"
    assert meet(ranks, store) == [f"rank 0 on gpu2 uses nccl, but rank 1 on gpu1 uses gloo; {fix}"] * 3


def test_a_single_process_has_a_group_of_one_and_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed.is_main()
    distributed.barrier()
    assert distributed.all_reduce_mean(3.5) == 3.5
    world = distributed.init("gloo", timeout_s=DEADLINE_S)
    try:
        assert (world.rank, world.world_size, world.is_main) == (0, 1, True)
        assert (world.device, world.backend) == (torch.device("cpu"), "gloo")
        assert world.launched_by == "single process"
        distributed.barrier()
        value = torch.tensor([[1.0, 2.0]], requires_grad=True)
        mean = distributed.all_reduce_mean(value)
        assert (mean.tolist(), mean.dtype, mean.requires_grad) == ([[1.0, 2.0]], torch.float32, False)
        assert mean.data_ptr() != value.data_ptr()
    finally:
        distributed.shutdown()
    assert not dist.is_initialized()
    distributed.shutdown()


def set_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Let this process stand where torchrun would have put it."""
    values = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 4, "MASTER_PORT": 29500}
    for name, value in {**values, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("world", "environ", "usable", "share"),
    [
        (World(local_world_size=2, launched_by="torchrun"), {}, 8, 4),
        (World(local_world_size=4, launched_by="torchrun"), {}, 2, 1),
        # Of a node with 64 CPUs: tasks that are bound to their own, and to none.
        (World(local_world_size=4, launched_by="srun"), {"SLURM_CPUS_ON_NODE": "32"}, 8, 8),
        (World(local_world_size=4, launched_by="srun"), {"SLURM_CPUS_ON_NODE": "32"}, 64, 8),
        (World(local_world_size=4, launched_by="srun"), {"SLURM_CPUS_PER_TASK": "3"}, 64, 3),
        # One torchrun per node: the CPUs of its task are those of its ranks.
        (
            World(local_world_size=4, launched_by="torchrun"),
            {"SLURM_CPUS_ON_NODE": "32", "SLURM_CPUS_PER_TASK": "32"},
            64,
            8,
        ),
        (World(), {"SLURM_CPUS_ON_NODE": "4"}, 64, 4),
    ],
)
def test_a_rank_gets_its_share_of_the_cpus(world: World, environ: dict[str, str], usable: int, share: int) -> None:
    assert distributed.share_cpus(world, environ, usable) == share


def test_torch_takes_no_more_threads_than_a_rank_has_cpus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    world, before, seen = World(0, 4, 0, 2, host="gpu2"), torch.get_num_threads(), []
    try:
        for rank, threads, chosen in ((0, 4, "8"), (0, 1, ""), (0, 4, ""), (1, 4, "")):
            torch.set_num_threads(threads)
            distributed.limit_threads(dataclasses.replace(world, rank=rank), {"OMP_NUM_THREADS": chosen})
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert seen == [4, 1, 2, 2]
    assert caplog.messages == [
        "torch's threads on each rank, its share of the CPUs: 2; set OMP_NUM_THREADS to change it"
    ]


def test_ranks_of_a_host_are_counted_where_nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    hosts = ("gpu1", "gpu1", "gpu1", "gpu2", "gpu2")
    ranks = [World(rank, 5, rank % 3, 0, launched_by="torchrun", host=host) for rank, host in enumerate(hosts)]
    told = dataclasses.replace(ranks[4], local_world_size=2)  # torchrun tells all of them, a user perhaps some
    *_, fourth, fifth = meet([*ranks[:4], told], dist.HashStore())
    assert fourth == dataclasses.replace(ranks[3], local_world_size=2, node_rank=1, node_count=2)
    assert (fifth, os.environ["LOCAL_WORLD_SIZE"] in ("2", "3")) == (told, True)
    ranks[4] = dataclasses.replace(ranks[4], local_rank=2)
    assert meet(ranks, dist.HashStore())[4] == "torchrun says local rank 2 of 2: it must be below 2"


def test_exported_variables_are_corrected_and_one_rank_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exported = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    store, values = dist.HashStore(), []
    for rank in range(4):  # the turns of the others are over, but for what is read
        for other in range(4):
            store.set(f"1 {other}", '["gpu2", "gloo"]')
        os.environ.update(exported)
        distributed.meet(World(rank, 4, rank, 0, launched_by="srun", host="gpu2"), store)
        values.append([os.environ[name] for name in distributed.RANK_VARIABLES])
    assert values[1:] == [[str(rank), "4", str(rank), "4"] for rank in range(1, 4)]  # torch's meshes read LOCAL_RANK
    assert caplog.messages == [
        "srun numbers the ranks, so these variables are ignored: RANK=0, WORLD_SIZE=4, LOCAL_RANK=0; "
        "fix: export MASTER_ADDR and MASTER_PORT only"
    ]


def test_gloo_is_told_its_interface_where_the_own_name_is_a_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.1.1")  # an address is its own name
    world = World(0, 2, launched_by="srun", node_count=2, peers=("127.0.1.1", "10.255.255.1"))
    asked = []

    class Socket(socket.socket):
        def connect(self, address: tuple[str, int]) -> None:  # a fake: a machine on which every way is over `lo`
            asked.append(address[0])
            super().connect(("127.0.0.1", address[1]))

    monkeypatch.setattr(socket, "socket", Socket)
    distributed.bind_gloo(dataclasses.replace(world, node_count=1))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    distributed.bind_gloo(world)
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "ib0"
    distributed.bind_gloo(world)
    assert (asked, os.environ["GLOO_SOCKET_IFNAME"]) == (["10.255.255.1"], "lo")


def test_the_interface_is_the_one_that_holds_the_source_address() -> None:
    assert distributed.interface_towards("127.0.0.1") == "lo"
    assert distributed.interface_towards("no.such.host.invalid") is None


@pytest.mark.parametrize("launched_by", ["srun", "torchrun"])
def test_a_taken_port_is_said_in_one_line(launched_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_rank(monkeypatch, 0)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(WorldError) as caught:
            distributed.connect(World(0, 2, launched_by=launched_by, master_port=port, timeout_s=5))
    host = socket.gethostname()
    fix = "fix: set MASTER_PORT to the same free port on all ranks"
    assert str(caught.value) == f"port {port} is taken on {host}; {fix}"


def test_a_port_of_another_job_is_said_in_one_line() -> None:
    theirs = World(0, 2, launched_by="srun", master_port=free_port(), run="41.0", timeout_s=DEADLINE_S)
    held = distributed.connect(theirs)
    with pytest.raises(WorldError) as caught:
        distributed.connect(dataclasses.replace(theirs, rank=1, run="42.0", timeout_s=1))
    assert distributed.connect(dataclasses.replace(theirs, rank=1)).check(["open"]) and held.check(["open"])
    fix = "fix: unset MASTER_PORT, or set it to the same free port on all ranks"
    assert str(caught.value) == f"port {theirs.master_port} on 127.0.0.1 is used by another job; {fix}"


def test_a_world_says_itself_in_one_line() -> None:
    alone = World(0, 1, 0, 1, torch.device("cpu"), "gloo", "single process", host="gpu2")
    assert str(alone) == "rank 0 of 1 (single process) on gpu2, cpu, gloo"
    fourth = World(3, 8, 1, 2, torch.device("cuda", 1), "nccl", "srun", node_rank=1, node_count=4, host="gpu2")
    assert str(fourth) == "rank 3 of 8 (srun) on gpu2, local rank 1 of 2, cuda:1, nccl"


def test_is_main_reads_the_rank_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    assert distributed.is_main(), "a RANK that was left in a shell silences nobody"
    for rank in (0, 3):
        set_rank(monkeypatch, rank)
        assert distributed.is_main() is (rank == 0)
