"""The plan: the exact argv and environment of every node, and the same as lines for a shell."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from string import Template

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.hosts.host import Host
from launcher.job.facts import Gpu, NodeFacts, Probes, Route
from launcher.job.job import TRAINER_MODULE, Activation, Job, Program, ProgramKind
from launcher.job.plan import (
    build_plan,
    master_address,
    placeholder_facts,
    settle_device,
    start_fields,
    warm_fields,
)
from launcher.node import messages
from launcher.node.processes.rank_start import LATE_VARIABLES
from launcher.runs.records import describe_hosts, describe_plan
from launcher.runs.report import plan_lines

ADDRESSES = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}
ADDRESS_LIST = (
    ("lo", "127.0.0.1"),
    ("docker0", "172.17.0.1"),
    ("virbr0", "192.168.122.1"),
    ("ib0", "fd00::1"),
    ("eth0", "10.9.0.1"),
    ("eth1", "10.8.0.1"),
)
GPU_ENV = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 CUDA_DEVICE_ORDER=PCI_BUS_ID"  # no folder of a run


def script(*args, target="train.py"):
    return Program(ProgramKind.SCRIPT, target, args)


def facts_of(name, *, gpus=0, cpu_count=8, **more):
    known = {
        "folder": f"/tmp/run-{name}",
        "hostname": name,
        "cpu_count": cpu_count,
        "home": f"/home/{name}",
        "ssh_address": ADDRESSES[name],
        "gpus": tuple(Gpu(index, "H200", 143771, "580.159") for index in range(gpus)),
        "python": "/usr/bin/python3",
        "python_version": "3.11",
        "torch_version": "2.13.0",
        "route": Route("eth1", ADDRESSES[name], 41873 if name == "gpu1" else None),
    }
    return NodeFacts(**(known | more))


def plan_of(job, *facts, share=None, **by_name):
    hosts = [by_name.get(fact.hostname, Host(fact.hostname)) for fact in facts]
    return build_plan(job, hosts, facts, share)


def torchrun_argv(nnodes, node_rank, nproc, *, name, program):
    return (
        "/usr/bin/python3", "-m", "torch.distributed.run",
        "--nnodes", str(nnodes), "--node-rank", str(node_rank), "--nproc-per-node", str(nproc),
        "--rdzv-backend", "static", "--rdzv-conf", "timeout=120",
        "--master-addr", "10.0.0.1" if nnodes > 1 else "127.0.0.1", "--master-port", "41873",
        "--local-addr", ADDRESSES[name], "--max-restarts", "0",
        "--log-dir", f"/tmp/run-{name}/torchrun",
        "--no-python", "--", *program,
    )  # fmt: skip


def by_hand(nnodes, node_rank, nproc, *, name, env, program, cwd="/data"):
    master = "10.0.0.1" if nnodes > 1 else "127.0.0.1"
    return (
        f"cd {cwd} && env {env} /usr/bin/python3 -m torch.distributed.run --nnodes {nnodes} --node-rank {node_rank} "
        f"--nproc-per-node {nproc} --rdzv-backend static --rdzv-conf timeout=120 --master-addr {master} "
        f"--master-port 41873 --local-addr {ADDRESSES[name]} --max-restarts 0 {program}"
    )


# what torchrun is given


def test_a_script_on_two_nodes_with_gpus():
    job = Job(script("--lr", "3e-4"), workdir="/data", env={"WANDB_API_KEY": "s", "A": "x y"})
    plan = plan_of(job, facts_of("gpu1", gpus=8, cpu_count=64), facts_of("gpu2", gpus=4, cpu_count=10))
    assert (plan.world_size, plan.master_addr, plan.master_port) == (12, "10.0.0.1", 41873)
    assert [(node.host.name, node.node_rank, node.first_rank, node.nproc, node.cwd) for node in plan.nodes] == [
        ("gpu1", 0, 0, 8, "/data"),
        ("gpu2", 1, 8, 4, "/data"),
    ]
    program = ("/usr/bin/python3", "-u", "train.py", "--lr", "3e-4")
    assert plan.nodes[0].argv == torchrun_argv(2, 0, 8, name="gpu1", program=program)
    assert plan.nodes[1].argv == torchrun_argv(2, 1, 4, name="gpu2", program=program)
    assert plan.nodes[1].env == {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "2",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/tmp/run-gpu2/files/nccl_trace_rank_",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    env = "WANDB_API_KEY=\"${WANDB_API_KEY}\" A='x y' PYTHONUNBUFFERED=1 OMP_NUM_THREADS=%d "
    env += f"GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME==eth1 {GPU_ENV}"
    assert plan_lines(plan) == [
        "# node 0: gpu1, ranks 0 to 7",
        by_hand(2, 0, 8, name="gpu1", env=env % 8, program="-- train.py --lr 3e-4"),
        "# node 1: gpu2, ranks 8 to 11",
        by_hand(2, 1, 4, name="gpu2", env=env % 2, program="-- train.py --lr 3e-4"),
    ]


CPU_ENV = (
    "PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4 GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME==eth1 CUDA_VISIBLE_DEVICES=''"
)


@pytest.mark.parametrize(
    ("program", "ranks_run", "shown"),
    [
        (script("a b"), ("-u", "train.py", "a b"), "-- train.py 'a b'"),
        (Program(ProgramKind.MODULE, "pkg.train", ("-x",)), ("-u", "-m", "pkg.train", "-x"), "-m -- pkg.train -x"),
        (
            Program(ProgramKind.BUILTIN, TRAINER_MODULE, ("--epochs", "1")),
            ("-u", "/tmp/run-gpu1/launcher.pyz", "launcher.trainer", "--epochs", "1"),
            "-m -- launcher.trainer --epochs 1",
        ),
    ],
)
def test_each_kind_of_program_on_one_node_without_gpus(program, ranks_run, shown):
    plan = plan_of(Job(program, nproc=2, cpu=True, workdir="/data"), facts_of("gpu1"))
    assert plan.nodes[0].argv == torchrun_argv(1, 0, 2, name="gpu1", program=("/usr/bin/python3", *ranks_run))
    assert plan_lines(plan) == [
        "# node 0: gpu1, ranks 0 to 1",
        by_hand(1, 0, 2, name="gpu1", env=CPU_ENV, program=shown),
    ]


def test_a_plain_command_is_started_without_torchrun():
    job = Job(Program(ProgramKind.COMMAND, "seq", ("1", "x y")), nproc=2, cpu=True, workdir="/data", env={"A": "1"})
    plan = plan_of(job, facts_of("gpu1", python=None, route=Route("eth1", "10.0.0.1", 41873)), facts_of("gpu2"))
    common = (
        f"{CPU_ENV} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_WORLD_SIZE=4 "
        "ROLE_NAME=default MASTER_ADDR=10.0.0.1 MASTER_PORT=41873 TORCHELASTIC_RESTART_COUNT=0 "
        "TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID=none"
    )
    assert plan_lines(plan)[2:] == [
        "# node 1: gpu2, ranks 2 to 3",
        f"cd /data && {{ env A=1 {common} RANK=2 ROLE_RANK=2 LOCAL_RANK=0 seq 1 'x y' & "
        f"env A=1 {common} RANK=3 ROLE_RANK=3 LOCAL_RANK=1 seq 1 'x y' & wait; }}",
    ]
    node = plan.nodes[1]
    assert (node.argv, [process.argv for process in node.processes]) == ((), [("seq", "1", "x y")] * 2)
    assert [(process.local_rank, process.env["RANK"]) for process in node.processes] == [(0, "2"), (1, "3")]
    words = dict(word.split("=", 1) for word in f"{common} RANK=3 ROLE_RANK=3 LOCAL_RANK=1".replace("''", "").split())
    assert node.processes[1].env == words


@pytest.mark.parametrize(
    ("program", "ranks_run", "shown"),
    [
        (script("a $b"), ("-u", "train.py", "a $b"), "-u train.py 'a $b'"),
        (
            Program(ProgramKind.BUILTIN, TRAINER_MODULE, ("--epochs", "1")),
            ("-u", "/tmp/run-gpu2/launcher.pyz", "launcher.trainer", "--epochs", "1"),
            "-u -m launcher.trainer --epochs 1",
        ),
    ],
)
def test_a_plain_start_needs_no_torchrun(program, ranks_run, shown):
    job = Job(program, nproc=2, cpu=True, workdir="/data", start="plain")
    plan = plan_of(job, facts_of("gpu1"), facts_of("gpu2"))
    heading, line = plan_lines(plan)[2:]
    assert heading == "# node 1: gpu2, ranks 2 to 3"
    assert line.startswith(f"cd /data && {{ env {CPU_ENV} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 ")
    assert (line.count(f" /usr/bin/python3 {shown} &"), line.count(" LOCAL_RANK=1 ")) == (2, 1)
    node = plan.nodes[1]
    assert (node.argv, [process.argv for process in node.processes]) == ((), [("/usr/bin/python3", *ranks_run)] * 2)
    command = plan_of(replace(job, program=Program(ProgramKind.COMMAND, "seq")), facts_of("gpu1"), facts_of("gpu2"))
    assert [process.env for process in node.processes] == [process.env for process in command.nodes[1].processes]


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        (Job(script("--lr", "1"), workdir="/data", start="warm"), 2),
        (Job(script(), nproc=2, cpu=True, start="warm", env={"OMP_NUM_THREADS": "3"}), 0),
        (Job(Program(ProgramKind.BUILTIN, TRAINER_MODULE), may_use_cpus=True, start="warm"), 0),
    ],
)
def test_a_warm_job_imports_torch_with_all_that_its_ranks_read_then(job, gpus):
    """What the other hosts and the network decide later is read by nobody while torch is imported."""
    error = None if gpus else messages.NO_GPU_TOOL
    facts = [facts_of(name, gpus=gpus, gpu_error=error, python_is_warmable=True) for name in ADDRESSES]
    hosts = [Host("gpu1"), Host("gpu2", gpus=(1,) if gpus else None)]
    early = [warm_fields(job, host, replace(fact, route=None)) for host, fact in zip(hosts, facts, strict=True)]
    slow = Probes(reverse_dns_s=5.0)
    plan = build_plan(settle_device(job, facts), hosts, [replace(fact, probes=slow) for fact in facts])
    for order, node in zip(early, plan.nodes, strict=True):
        start = start_fields(node)
        assert {(order["argv"], order["cwd"])} == {(process["argv"], start["cwd"]) for process in start["processes"]}
        changed = {name for process in start["processes"] for name, _ in process["env"].items() ^ order["env"].items()}
        assert changed <= LATE_VARIABLES
        assert {"GLOO_SOCKET_IFNAME", "RES_OPTIONS"} <= changed
    line = build_plan(replace(settle_device(job, facts), start="torchrun"), hosts, facts).nodes[1].by_hand
    assert plan_of(job, *facts).nodes[1].argv == ()
    assert " -m torch.distributed.run " in line


def test_a_plain_start_knows_the_gpus_of_its_ranks():
    plan = plan_of(Job(script(), start="plain"), facts_of("gpu1", gpus=1), facts_of("gpu2", gpus=2))
    assert [(len(node.processes), node.gpus) for node in plan.nodes] == [(1, (0,)), (2, (0, 1))]
    line = plan.nodes[1].by_hand
    assert (line.count(" WORLD_SIZE=3 LOCAL_WORLD_SIZE=2 "), line.count("/usr/bin/python3 -u train.py")) == (2, 2)


def test_what_a_setup_has_set_stays_but_for_the_choice_of_gpus():
    names = ("NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
    env = {"PYTHONPATH": "/mine", "OWN": "1"}
    job = Job(script(), nproc=1, cpu=True, workdir="/data", env=env, activation=Activation(setup="module load x"))
    (node,) = plan_of(job, facts_of("gpu1", setup_names=names)).nodes
    assert "NCCL_SOCKET_IFNAME" not in node.env
    assert (node.env["GLOO_SOCKET_IFNAME"], node.env["CUDA_VISIBLE_DEVICES"]) == ("eth1", "")
    assert node.by_hand.startswith("cd /data && eval 'module load x' && env OWN=1 PYTHONUNBUFFERED=1 OMP")
    named = replace(job, named_env=frozenset(env))
    (node,) = plan_of(named, facts_of("gpu1", setup_names=names)).nodes
    assert node.by_hand.startswith("cd /data && eval 'module load x' && env PYTHONPATH=/mine OWN=1 PYTHONUNBUFFERED=1 ")


# sizes, addresses, folders


def test_slots_give_each_host_its_size():
    facts = facts_of("gpu1", gpus=8), facts_of("gpu2", gpus=8)
    plan = plan_of(Job(script()), *facts, gpu1=Host("gpu1", slots=3), gpu2=Host("gpu2", slots=1))
    assert [(node.first_rank, node.nproc) for node in plan.nodes] == [(0, 3), (3, 1)]
    assert [line for line in plan_lines(plan) if line.startswith("#")] == [
        "# node 0: gpu1, ranks 0 to 2",
        "# node 1: gpu2, rank 3",
    ]


@pytest.mark.parametrize(
    ("host", "cpu", "visible", "gpus"),
    [
        (Host("gpu1"), False, None, [0, 1]),
        (Host("gpu1", gpus=(7, 2)), False, (6, 3), [7, 2]),
        (Host("gpu1"), True, None, [None, None]),
        (Host("gpu1"), False, (-1,), [None, None]),
    ],
)
def test_the_gpu_of_a_local_rank(host, cpu, visible, gpus):
    facts = facts_of("gpu1", gpus=8, visible_gpus=visible)
    node = plan_of(Job(script(), nproc=2, cpu=cpu), facts, gpu1=host).nodes[0]
    assert [node.gpu_of(local_rank) for local_rank in range(3)] == [*gpus, None]


def cuda_devices(speeds, env):
    """Return the GPU (its number in nvidia-smi) at each of CUDA's numbers: by bus, or by CUDA's own order, by speed."""
    by_bus = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    order = sorted(range(len(speeds)), key=lambda index: index if by_bus else -speeds[index])
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    return order if chosen is None else [order[int(word)] for word in chosen.split(",")]


@pytest.mark.parametrize(
    ("host", "of_login", "gpus"),
    [
        (Host("gpu1"), {}, [0, 1, 2]),
        (Host("gpu1", slots=1), {}, [0]),
        (Host("gpu1", gpus=(0,)), {}, [0]),
        (Host("gpu1", gpus=(2, 0)), {}, [2, 0]),
        (Host("gpu1"), {"CUDA_VISIBLE_DEVICES": "0,2"}, [0, 2]),
    ],
)
def test_a_rank_gets_the_gpu_that_is_checked_though_another_is_faster(host, of_login, gpus):
    """On a box with an RTX 3090, a 4090 and a 5090, CUDA's own GPU 0 is the last one."""
    visible = tuple(gpus) if of_login else None
    (node,) = plan_of(Job(script()), facts_of("gpu1", gpus=3, visible_gpus=visible), gpu1=host).nodes
    there = cuda_devices([3090, 4090, 5090], {**of_login, **node.env})
    assert [(there[rank], node.gpu_of(rank)) for rank in range(node.nproc)] == [(gpu, gpu) for gpu in gpus]


@pytest.mark.parametrize(
    ("gpus", "visible"),
    [
        ([(0, None), (1, None), (2, None)], "2,0"),
        ([(0, None), (1, "GPU is lost"), (2, None)], "GPU-2,GPU-0"),
        ([(0, None), (2, None)], "GPU-2,GPU-0"),
    ],
)
def test_gpus_beside_a_lost_one_are_named_by_uuid(gpus, visible):
    """CUDA may not count a lost GPU, and the numbers after it would then be other GPUs'."""
    there = tuple(Gpu(index, "H100", 81559, "580.159", uuid=f"GPU-{index}", fault=fault) for index, fault in gpus)
    facts = replace(facts_of("gpu1"), gpus=there)
    (node,) = plan_of(Job(script()), facts, gpu1=Host("gpu1", gpus=(2, 0))).nodes
    assert node.env["CUDA_VISIBLE_DEVICES"] == visible


def test_all_chosen_gpus_are_those_of_one_rank():
    (node,) = plan_of(Job(script(), nproc=1), facts_of("gpu1", gpus=8), gpu1=Host("gpu1", gpus=(4, 5, 6))).nodes
    assert (node.gpus, node.gpu_of(0), node.gpu_of(1)) == ((4, 5, 6), 4, None)


@pytest.mark.parametrize(("nproc", "gpus"), [(None, (0, 1, 2, 3)), (2, ())])
def test_the_gpus_of_a_plain_command(nproc, gpus):
    """With --nproc it needs none."""
    (node,) = plan_of(Job(Program(ProgramKind.COMMAND, "id"), nproc=nproc), facts_of("gpu1", gpus=4)).nodes
    assert node.gpus == gpus


@pytest.mark.parametrize(
    ("may_use_cpus", "errors", "cpu"),
    [
        (True, [messages.NO_GPU_TOOL, messages.NO_GPU_TOOL], True),
        (False, [messages.NO_GPU_TOOL, messages.NO_GPU_TOOL], False),
        (True, [messages.NO_GPU_TOOL, "nvidia-smi gave no answer in 5 s"], False),  # a GPU may be there
    ],
)
def test_the_hosts_say_whether_a_job_runs_on_cpus(may_use_cpus, errors, cpu):
    facts = [facts_of("gpu1", gpus=0 if error else 8, gpu_error=error) for error in errors]
    assert settle_device(Job(script(), nproc=2, may_use_cpus=may_use_cpus), facts).cpu == cpu


def test_a_run_on_cpus_has_one_rank_per_host_unless_a_number_was_named():
    two = (facts_of("gpu1", gpus=0), facts_of("gpu2", gpus=0))
    job = Job(script(), cpu=True)
    assert [node.nproc for node in plan_of(job, *two, gpu2=Host("gpu2", slots=3)).nodes] == [1, 3]
    assert plan_of(Job(script(), nproc=2, cpu=True), *two).world_size == 4


@pytest.mark.parametrize(("cpu_count", "nproc", "threads"), [(7, 2, "3"), (1, 4, "1"), (None, 2, None)])
def test_ranks_share_the_cores(cpu_count, nproc, threads):
    plan = plan_of(Job(script(), nproc=nproc, cpu=True), facts_of("gpu1", cpu_count=cpu_count))
    assert plan.nodes[0].env.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("version", "size", "prefix"),
    [
        ("2.7.1+cu128", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.8.0", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_the_flight_recorder_is_set_as_that_torch_spells_it(version, size, prefix):
    """torch 2.8 and newer print a warning on every rank for each older name that they find, used or not."""
    (node,) = plan_of(Job(script(), nproc=1), facts_of("gpu1", gpus=1, torch_version=version)).nodes
    recorder = {name: value for name, value in node.env.items() if name.startswith("TORCH_")}
    files = "/tmp/run-gpu1/files/nccl_trace_rank_"
    assert recorder == {size: "2000", prefix: files, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def test_the_users_flight_recorder_counts_by_its_older_name_too():
    job = Job(script(), nproc=1, env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"})
    (node,) = plan_of(job, facts_of("gpu1", gpus=1)).nodes
    assert "TORCH_FR_BUFFER_SIZE" not in node.env
    assert "TORCH_FR_DUMP_TEMP_FILE" in node.env


def test_an_address_with_a_label_of_its_own_is_named_by_the_label():
    """NCCL would read `=bond0:1` as the interface bond0 and a port, and bond0 alone isn't equal to bond0:1."""
    route = Route("bond0:1", "10.0.0.1", 41873)
    (node,) = plan_of(Job(script(), nproc=1), facts_of("gpu1", gpus=1, route=route)).nodes
    assert node.env["NCCL_SOCKET_IFNAME"] == "bond0:1"


def test_what_the_user_has_set_stays():
    env = {"NCCL_SOCKET_IFNAME": "^lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "3"}
    plan = plan_of(Job(script(), env=env, nproc=1), facts_of("gpu1", gpus=1), gpu1=Host("gpu1", gpus=(0,)))
    assert plan.nodes[0].env.keys() & env.keys() == set()
    assert plan.nodes[0].env["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "env NCCL_SOCKET_IFNAME='^lo' OMP_NUM_THREADS=1 PYTHONUNBUFFERED='' CUDA_VISIBLE_DEVICES=3 GLOO" in (
        plan.nodes[0].by_hand
    )


LOCAL = {"ssh_client": None, "ssh_address": None, "addresses": ADDRESS_LIST}  # node 0 is where launch runs
NAMED = Host("gpu1", address="10.1.0.1")


def test_a_run_on_node_0_alone_needs_no_network():
    assert master_address(NAMED, [facts_of("gpu1")], alone=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "first", "seen_by_others", "address"),
    [
        (NAMED, {}, [None], "10.1.0.1"),
        (Host("gpu1"), {}, [None], "10.0.0.1"),
        (Host("gpu1"), LOCAL, [None], "10.9.0.1"),
        # A local node 0 has the address from which others saw us come.
        (Host("gpu1"), LOCAL, ["203.0.113.9", None, "10.8.0.1"], "10.8.0.1"),
        (Host("gpu1"), {**LOCAL, "ssh_client": "10.8.0.1"}, [None], "10.9.0.1"),  # what node 0 saw is not the point
        (Host("gpu1"), {**LOCAL, "ssh_address": "10.0.0.1"}, ["10.8.0.1"], "10.0.0.1"),
        # An address that needs a scope is skipped.
        (Host("gpu1"), {**LOCAL, "ssh_address": "fe80::1%eth1"}, ["10.8.0.1"], "10.8.0.1"),
        (Host("gpu1"), {**LOCAL, "addresses": (("eth1", "fe80::1"), *ADDRESS_LIST)}, ["fe80::1"], "10.9.0.1"),
    ],
)
def test_the_address_of_node_0(host, first, seen_by_others, address):
    others = [facts_of("gpu2", ssh_client=client) for client in seen_by_others]
    assert master_address(host, [facts_of("gpu1", **first), *others], alone=False) == address


def test_a_named_address_and_port_are_taken():
    job = Job(script(), nproc=1, master_addr="gpu1.lan", master_port=29400, rendezvous_timeout_s=7, workdir=None)
    plan = plan_of(job, facts_of("gpu1", route=None), facts_of("gpu2"))
    assert (plan.master_addr, plan.master_port, plan.nodes[0].cwd) == ("gpu1.lan", 29400, "/home/gpu1")
    assert "--rdzv-conf timeout=7 --master-addr gpu1.lan --master-port 29400 --max-restarts 0" in plan.nodes[0].by_hand
    assert "SOCKET_IFNAME" not in plan.nodes[0].by_hand


def test_what_the_record_says_of_hosts():
    facts = [facts_of("gpu1", gpus=2), facts_of("gpu2", torch_version="2.12.0", route=None)]
    first, second = describe_hosts([Host("gpu1"), Host("gpu2")], facts)
    assert (first["gpus"], first["gpu_model"], first["driver"], first["interface"]) == (2, "H200", "580.159", "eth1")
    assert (second["gpus"], second["gpu_model"], second["torch_version"], second["interface"]) == (
        0,
        None,
        "2.12.0",
        None,
    )


def test_the_record_hides_secrets():
    job = Job(Program(ProgramKind.COMMAND, "id", ("-u",)), nproc=1, cpu=True, env={"HF_TOKEN": "hunter2"})
    plan = plan_of(job, facts_of("gpu1"))
    record = describe_plan(plan)
    assert "hunter2" not in repr(record)
    told = replace(plan.nodes[0], env={"HF_TOKEN": "hunter2"})
    assert "hunter2" not in repr(describe_plan(replace(plan, nodes=(told,))))
    (node,) = record.pop("nodes")
    assert {name: record[name] for name in ("program", "world_size", "master_addr", "master_port")} == {
        "program": {"kind": "command", "target": "id", "args": ("-u",)},
        "world_size": 1,
        "master_addr": "127.0.0.1",
        "master_port": 41873,
    }
    place = {"host": "gpu1", "node_rank": 0, "first_rank": 0, "nproc": 1, "cwd": "/home/gpu1"}
    assert node == {**place, "argv": ("id", "-u"), "env": plan.nodes[0].env, "command": ""}


# a dry run, where no node was asked


def dry_lines(job, *hosts):
    return plan_lines(build_plan(job, hosts, [placeholder_facts(job, host) for host in hosts]))


@pytest.mark.parametrize("job", [Job(script(), start="plain"), Job(Program(ProgramKind.COMMAND, "id"))])
def test_a_dry_run_numbers_no_ranks_that_nobody_has_counted(job):
    """The variables of each would need the sizes of all nodes."""
    assert dry_lines(job, Host("a", slots=8), Host("b")) == [
        "# node 0: a, ranks 0 to 7",
        "# the number of ranks depends on the GPUs of other hosts: --dry-run --check counts them",
        "# node 1: b, as many ranks as GPUs",
        "# one process per GPU of b: --dry-run --check counts them",
    ]


def test_plain_processes_with_an_environment_enter_it_once():
    job = Job(Program(ProgramKind.COMMAND, "id"), nproc=2, workdir="/data", activation=Activation(setup="true"))
    _, line = dry_lines(job, Host("a"))
    assert line.startswith("cd /data && eval true && { env PYTHONUNBUFFERED=1 ")
    assert line.endswith(" LOCAL_RANK=1 id & wait; }")


# through real shells

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["$HOME", "$$", "${local_rank}", "`id`", "!!", "--", "-", "*", "~", "a\nb", "\\", "\\n", "'", '"', "#", "&", ";"]
)
DUMP = '#!/bin/sh\nprintf "%s\\0" "$PWD" "$@" >"$OUT"; env -0 >"$OUT.env"\n'


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Return a program with a nasty name that writes down its folder, arguments and environment."""
    path = tmp_path_factory.mktemp("it's $HOME") / "my python"
    path.write_text(DUMP)
    path.chmod(0o755)
    return path


def run_line(line, folder):
    """Run a line in a shell; return the argv of its process, with the folder in front, and its environment."""
    env = {"PATH": os.environ["PATH"], "OUT": f"{folder}/out"}
    subprocess.run(["/bin/sh", "-c", line], env=env, check=True)
    return read_words(folder / "out"), dict(entry.split("=", 1) for entry in read_words(folder / "out.env"))


def read_words(path):
    return path.read_bytes().decode().split("\0")[:-1]


@given(st.lists(words, max_size=4), st.dictionaries(st.sampled_from(["A", "B_1"]), words))
def test_a_line_by_hand_comes_through_a_shell(dump, args, env):
    facts = facts_of("gpu1", python=str(dump))
    job = Job(script(*args, target="my train.py"), nproc=2, cpu=True, workdir=str(dump.parent), env=env)
    plan = plan_of(job, facts)
    argv, found = run_line(plan.nodes[0].by_hand, dump.parent)
    given_to_torchrun = argv[argv.index("--max-restarts") + 2 :]
    assert argv[:3] == [str(dump.parent), "-m", "torch.distributed.run"]
    assert [Template(word).safe_substitute(local_rank="X") for word in given_to_torchrun] == [
        "--", "my train.py", *args,
    ]  # fmt: skip
    assert found.items() >= {**env, **plan.nodes[0].env}.items()


@given(st.lists(words, max_size=4))
def test_torchrun_gives_the_words_back_that_it_was_given(args):
    """It puts every argument through string.Template, with the run's own macros."""
    facts = facts_of("gpu1", folder="/tmp/$local_rank")
    argv = plan_of(Job(script(*args), nproc=1, cpu=True), facts).nodes[0].argv
    given_words = argv[argv.index("--") + 1 :]
    assert [Template(word).safe_substitute(local_rank="X") for word in given_words] == [
        "/usr/bin/python3", "-u", "train.py", *args,
    ]  # fmt: skip


def test_torchrun_leaves_the_arguments_of_the_script_alone():
    run = pytest.importorskip("torch.distributed.run", reason="needs torch: pip install '.[torch]'")
    args = ["--nnodes", "9", "--help", "-m", "--log", "info", "--n", "5"]  # the last two are abbreviated
    plan = plan_of(Job(script(*args), nproc=3, cpu=True), facts_of("gpu1"))
    argv = plan.nodes[0].argv
    parsed = run.get_args_parser().parse_args(argv[argv.index("torch.distributed.run") + 1 :])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.master_port) == ("1", "3", 41873)
    assert (parsed.no_python, parsed.training_script) == (True, "/usr/bin/python3")
    assert parsed.training_script_args[-len(args) :] == args


@pytest.mark.parametrize(
    ("probes", "env", "value"),
    [
        (Probes(reverse_dns_s=0.5), {}, None),
        (Probes(reverse_dns_s=0.6), {}, "timeout:1 attempts:2"),
        (Probes(reverse_dns_s=5.0), {"RES_OPTIONS": "rotate"}, None),  # the user's own stands in the job
    ],
)
def test_a_slow_resolver_is_given_up_early_on_its_node_only(probes, env, value):
    slow = facts_of("gpu1", probes=probes)
    plan = plan_of(Job(script(), 1, cpu=True, env=env), slow, facts_of("gpu2", probes=Probes(reverse_dns_s=0.01)))
    assert plan.nodes[0].env.get("RES_OPTIONS") == value
    assert "RES_OPTIONS" not in plan.nodes[1].env
    assert ("RES_OPTIONS=" in plan.nodes[0].by_hand) == bool(value or env)
