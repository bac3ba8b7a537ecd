"""The command line up to the plan: every wrong input in its own words, and every option where it belongs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.cli import runner
from launcher.cli.run import command as run_command
from launcher.errors import (
    EXIT_PREFLIGHT,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    ChecksFailed,
    HostFailure,
    HostFailureKind,
    HostsUnreachable,
)
from launcher.job.job import COLLECTIVES_MODULE, TRAINER_MODULE, Job, Program, ProgramKind
from launcher.runs.records import Result
from launcher.runs.run_list import RunList
from launcher.session.node_state import Census

TWO = "node1 slots=8\nnode2 slots=4\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, in an environment of which nothing is forwarded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.platform", "linux")  # a Mac refuses to run ranks
    monkeypatch.setattr("os.environ", {"COLUMNS": "100", "HOME": str(tmp_path)})
    (tmp_path / "two").write_text(TWO)
    return tmp_path


@pytest.fixture
def jobs(monkeypatch):
    """Take the jobs instead of running them; each ends with exit code 7."""
    taken = []

    def take(job, hosts, open_transport, output, run_options, *more, with_history=False):
        transport = open_transport(hosts, print)
        taken.append((job, [host.name for host in hosts], type(transport).__name__, run_options))
        return 7

    def take_recorded(*args):
        return Result(take(*args), 1.0, Census({}, {})), Path("logs/RUN")

    monkeypatch.setattr(runner, "run_job", take)
    monkeypatch.setattr(runner, "run_recorded", take_recorded)
    return taken


# wrong input

ALL = "omit --ranks to see all"
OPTIONS = "see launch run --help for the options"
NO_COMMAND = "see launch --help for the commands; hosts are one word: --hosts a,b"
WRONG = [
    ("", "no hosts given", "pass --hosts a,b or --hostfile FILE; to use this machine only, run launch singlenode"),
    ("hosts", "no hosts given", "pass --hosts a,b or --hostfile FILE"),
    ("singelnode --gpus 4", "no file or command 'singelnode'; did you mean 'singlenode'?", None),
    ("xyzzy --hosts a", "no file or command 'xyzzy'", NO_COMMAND),
    ("--hosts a --hostfile two t.py", "--hosts and --hostfile are both given", "pass only one of them"),
    ("hosts --hostfile none", "none: no such hostfile", "check the path given to --hostfile"),
    ("--hosts a;b t.py", "--hosts: host name 'a;b' contains ';'", None),
    ("hosts --hosts a --include b", "--include: no host 'b' in the list", "choose from a"),
    (
        "hosts --hosts a,b --num-nodes 3",
        "--num-nodes 3: only 2 hosts to choose from",
        "lower it, or name more hosts than a,b",
    ),
    ("--hosts a --gpus x t.py", "--gpus: must be auto or a number from 1 to 1024, got 'x'", OPTIONS),
    (f"singlenode --gpus {1:05000} t.py", f"--gpus: must be auto or a number from 1 to 1024, got '{1:05000}'", None),
    ("--hosts a --silence 2d t.py", "--silence: must be at most 1d, got '2d'", OPTIONS),
    (
        "--hosts a,b --include b:2,3 --env CUDA_VISIBLE_DEVICES=0,1 t.py",
        "CUDA_VISIBLE_DEVICES=0,1 and b:2,3 (--include or --exclude) both choose GPUs",
        "use only one of them",
    ),
    (
        "--hosts a --spares 1 --restarts 1 t.py",
        "all hosts are spares, so none is left to run on",
        "name more hosts, or fewer spares",
    ),
    (
        "--hosts a,b --spares 1 --nproc 1 t.py",
        "--spares works only with --restarts",
        "add --restarts N, or omit --spares",
    ),
    ("--hosts a --min-nodes 2 --restarts 1 --nproc 1 t.py", "--min-nodes 2: the run has only 1 host", "lower it"),
    (
        "--hosts a,b --spares 1 --restarts 1 --nproc 1 --master-addr 10.0.0.1 t.py",
        "--master-addr can't be given with spares: one of them may become node 0, and has another address",
        "set addr= in a hostfile instead",
    ),
    (
        "--hosts a --gpus 2 --nproc 3 t.py",
        "--gpus 2 and --nproc 3 differ",
        "pass one of them: each GPU gets one process",
    ),
    ("--hosts a --cpu t.py", "--cpu needs a number of processes", "pass --nproc N, or set slots=N in the hostfile"),
    ("--hosts a --include a:0,1 --gpus 1 t.py", "--hosts: a has 2 slots, but --gpus is 1", "remove --gpus or slots="),
    ("--hosts node0 node1 t.py", "no file or command 'node1'", NO_COMMAND),
    ("--hosts a --venv d --conda x t.py", "--venv and --conda are both given", "pass only one of them"),
    ("--hosts a -m --no-python x", "-m and --no-python are both given", "omit --no-python: a module needs Python"),
    ("--hosts a -m", "-m and --no-python need a name after them", ""),
    ("--hosts a --env NO t.py", "--env NO: NO is not set here", "give its value: --env NO=VALUE"),
    ("--hosts a --env-file none t.py", "none: No such file or directory", ""),
    (
        "--hosts a --check t.py",
        "--check works only with --dry-run",
        "add --dry-run, or run launch check to compare the hosts",
    ),
    (
        "singlenode --cpu --nproc 1 --ranks a t.py",
        "--ranks: must be numbers separated by commas, got 'a'",
        "write them as --ranks 0,8",
    ),
    (
        "singlenode --cpu --nproc 2 --ranks 0,7 t.py",
        "--ranks 7: the run has ranks 0 to 1",
        ALL,
    ),
    (
        "node --nnodes 2 --node-rank 2 --master-addr h --nproc 1 --cpu t.py",
        "--node-rank 2: must be below --nnodes 2",
        "",
    ),
    ("exec --hosts a", "no command given", "write it after --: launch exec --hosts a,b -- uptime"),
    ("exec --hosts a -b --json true", "--fold and --json are both given", "pass only one of them"),
    ("top x --hosts a", "a run and hosts are both given", "name only one of them"),
    (
        ["singlenode", "--name", "a\n", "--no-python", "true"],
        "--name: 'a\\n': must be 1 to 64 letters, digits, '.', '-' and '_'",
        None,
    ),
    (
        "singlenode --name=--now --no-python true",
        "--name: '--now': means something else where a run is named",
        None,
    ),
    *((f"{command} --ssh-config two", "--ssh-config works only with --controller",
       "add --controller HOST, or omit --ssh-config")
      for command in ("logs", "attach", "fetch", "stop", "wait", "report")),
    ("ps --ssh-config two", "--ssh-config works only with --hosts", "add --hosts LIST, or omit --ssh-config"),
    ("clean --hosts a --env XDG_CACHE_HOME=x", "--env works only with --code", "add --code, or omit --env"),
    ("fetch --all", "--all works only with PATH", "add PATH, or omit --all"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "fix"), WRONG)
def test_wrong_input_is_refused_in_one_line_and_a_hint(launch, folder, line, message, fix):
    code, out, err = launch(line)
    said, _, hinted = err.partition("\n")
    assert (code, out, said) == (EXIT_USAGE, "", f"launch: {message}")
    assert fix is None or hinted == (f"  fix: {fix}\n" if fix else "")
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_an_empty_word_names_no_run(launch, folder):
    """Such as one of a variable that isn't set: neither the only run nor the newest."""
    RunList.of_user(os.environ).begin("20261120-091233", None, folder).close(is_kept=True)
    said = "launch: no run ''\n  fix: see launch ps for the runs of this machine\n"
    for words in ("again", "attach", "fetch", "logs", "ps --forget", "report", "stop", "top", "wait"):
        assert launch([*words.split(), ""]) == (EXIT_USAGE, "", said), words


@pytest.mark.parametrize("word", ["exec", "pss", "./pss", "pss.py", "two"])
def test_a_word_may_be_a_file_of_the_hosts(launch, jobs, word):
    folder = [] if word in ("./pss", "pss.py", "two") else ["--workdir", "/data"]
    assert launch(["--hosts", "a", "--nproc", "1", "--cpu", *folder, word, "-x"])[0] == 7
    assert [job.program for job, *_ in jobs] == [Program(ProgramKind.SCRIPT, word, ("-x",))]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ChecksFailed("a: no GPU (nvidia-smi lists none)\n  fix: run on CPUs: --nproc N --cpu\nb: no GPU"),
            EXIT_PREFLIGHT,
            "launch: nothing was started; these would break the run:\n"
            "  a: no GPU (nvidia-smi lists none)\n"
            "    fix: run on CPUs: --nproc N --cpu\n"
            "  b: no GPU\n",
        ),
        (
            HostsUnreachable(
                [
                    HostFailure(name, HostFailureKind.REFUSED, "nobody listens on port 22", "is sshd up?")
                    for name in "ab"
                ]
            ),
            EXIT_UNREACHABLE,
            "launch: 2 hosts can't be used:\n"
            "  a,b: nobody listens on port 22\n"
            "    fix: is sshd up?\n"
            "launch: nothing was started\n",
        ),
    ],
)
def test_a_hint_stands_on_a_line_of_its_own(launch, monkeypatch, error, code, said):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(runner, "run_job", refuse)
    assert launch("--hosts a,b --nproc 1 --cpu t.py") == (code, "", said)


# what was understood


def test_hosts_as_a_table(launch, folder):
    (folder / "hosts").write_text("gpu[1-2] slots=8\nann@lab1 port=2222 addr=10.0.0.3\n")
    code, out, err = launch("hosts --hostfile hosts --include gpu1:3,1@lab1")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "node  host  slots  GPUs  user  port  addr      from",
        "0     gpu1  2      3,1   -     -     -         hosts:1",
        "1     lab1  -      -     ann   2222  10.0.0.3  hosts:2",
    ]


def test_a_typed_command_that_enters_containers_replaces_those_of_files(launch, folder):
    (folder / "hosts").write_text("a enter='sudo -u b'\nc\n")
    (folder / "launcher.toml").write_text('enter = "sudo -u d"\n')
    found = json.loads(launch("hosts --hostfile hosts --json")[1])
    assert [host["enter"] for host in found] == ["sudo -u b", "sudo -u d"]
    for entered in ("env", ""):
        found = json.loads(launch(["hosts", "--hostfile", "hosts", "--json", "--enter", entered])[1])
        assert [host["enter"] for host in found] == [entered, entered]


def test_what_stands_behind_a_colon_is_read_in_a_list_and_in_a_file(launch, folder):
    (host, _) = json.loads(launch("hosts --hosts a:2222,b --json")[1])
    assert (host["port"], host["slots"]) == (2222, None)
    (folder / "hosts").write_text("a:8\nb\n")
    (host, _) = json.loads(launch("hosts --hostfile hosts --json")[1])
    assert (host["port"], host["slots"]) == (None, 8)


def test_a_dry_run_as_json(launch, folder):
    code, out, err = launch("--hosts a --nproc 2 --cpu --no-python --env A=1 --name base --dry-run --json ./x --lr 1")
    assert (code, err, out.count("\n")) == (0, "", 1)
    plan = json.loads(out)
    command, _ = plan["nodes"][0].pop("command"), plan.pop("time")
    assert command.startswith(f"cd {folder} && {{ env A=1 PYTHONUNBUFFERED=1 ")
    assert plan == {
        "event": "plan",
        "run": None,
        "name": "base",
        "logs": "",
        "attempt": 0,
        "program": {"kind": "command", "target": "./x", "args": ["--lr", "1"]},
        "world_size": 2,
        "master_addr": "127.0.0.1",
        "master_port": None,
        "nodes": [
            {"host": "a", "node_rank": 0, "first_rank": 0, "nproc": 2, "cwd": str(folder), "argv": [], "env": {}}
        ],
        "code": None,
    }


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("", Program(ProgramKind.BUILTIN, TRAINER_MODULE)),
        ("-m launcher.trainer --epochs 1", Program(ProgramKind.BUILTIN, TRAINER_MODULE, ("--epochs", "1"))),
        ("-m launcher.collectives", Program(ProgramKind.BUILTIN, COLLECTIVES_MODULE)),
        ("-m launcher.trainer.loop", Program(ProgramKind.MODULE, "launcher.trainer.loop")),
        ("-m exec", Program(ProgramKind.MODULE, "exec")),
        ("--no-python exec", Program(ProgramKind.COMMAND, "exec")),
        ("--no-python pss", Program(ProgramKind.COMMAND, "pss")),
        ("--no-python ls -la --help", Program(ProgramKind.COMMAND, "ls", ("-la", "--help"))),
        (
            "t.py --hosts b --nproc x -- -q -m",
            Program(ProgramKind.SCRIPT, "t.py", ("--hosts", "b", "--nproc", "x", "--", "-q", "-m")),
        ),
        ("-- t.py -- --", Program(ProgramKind.SCRIPT, "t.py", ("--", "--"))),
    ],
)
def test_what_stands_after_the_script_is_left_alone(launch, jobs, folder, line, program):
    assert launch(f"--hosts a --nproc 1 --cpu {line}")[0] == 7
    ((job, *_),) = jobs
    assert job == Job(program, 1, cpu=True, workdir=str(folder))


def test_arguments_are_words_and_stay_words(launch, jobs):
    args = ["", " a  b ", "$HOME", "'\"", "\n", "*", "-", "é", "\udcff"]
    launch(["singlenode", "--nproc", "1", "--cpu", "t.py", *args])
    assert (jobs[0][0].program.args, jobs[0][2]) == (tuple(args), "LocalTransport")


@pytest.mark.parametrize(
    ("line", "may_use_cpus"),
    [
        ("--hosts a", True),
        ("singlenode --nproc 2", True),
        ("--hosts a -m launcher.trainer --lr 1", True),
        ("--hosts a train.py --lr 1", True),
        ("--hosts a --gpus 8 train.py", False),
        ("--hosts a,b --include b:2,3", False),
        ("--hosts a own.py", False),
        ("--hosts a pipe", False),  # which nobody writes to
        ("--hosts a --workdir /elsewhere train.py", False),
        ("node --nnodes 1 --node-rank 0 --master-addr a", True),
        ("node --nnodes 2 --node-rank 0 --master-addr a", False),  # the other may have GPUs
    ],
)
def test_only_the_built_in_trainer_does_without_gpus(launch, jobs, folder, line, may_use_cpus):
    (folder / "train.py").write_text((Path(__file__).parents[3] / "train.py").read_text())
    (folder / "own.py").write_text("import torch\nfrom launcher import distributed\n")
    os.mkfifo(folder / "pipe")
    launch(line)
    assert jobs[0][0].may_use_cpus is may_use_cpus


def test_collectives_on_this_machine_or_on_hosts(launch, jobs, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/env")
    assert launch("2 --cpu", entry=cli.main_test_distributed) == (7, "", "test-distributed: gloo on CPUs\n")
    said = "test-distributed: NCCL on GPUs, or gloo on CPUs if no host has GPUs\n"
    assert launch("2 --hosts a,b --max-size 8 --gpus-under-load 1m", entry=cli.main_test_distributed) == (7, "", said)
    assert [(job.nproc, job.cpu, job.program.target, transport) for job, _, transport, _ in jobs] == [
        (2, True, COLLECTIVES_MODULE, "LocalTransport"),
        (2, False, COLLECTIVES_MODULE, "FabricTransport"),
    ]
    assert all(job.may_use_cpus and job.active_env == "/env" for job, *_ in jobs)
    assert jobs[1][0].program.args == ("--names", "a,b", "--max-size", "8", "--load", "60")
    launch("2 --hosts a,b --timeout 1m", entry=cli.main_test_distributed)
    assert jobs[2][0].program.args == ("--names", "a,b", "--timeout", "60")


def test_collectives_over_pdsh(launch, jobs, monkeypatch):
    """The transport wants --silence, which this command hasn't got."""
    line = "2 --cpu --hosts a,b --transport pdsh"
    monkeypatch.setenv("PATH", "")
    code, _, err = launch(line, entry=cli.main_test_distributed)
    assert (code, err.splitlines()[1]) == (EXIT_USAGE, "launch: --transport pdsh: no pdsh on this machine")
    assert jobs == []


def test_ctrl_c_before_the_run_is_no_traceback(launch, monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "callback", interrupt)
    assert launch("--hosts a t.py") == (130, "", "\n")


# launcher.toml


def write_defaults(text, name="launcher.toml"):
    Path(name).write_text(text)


def test_a_file_holds_defaults_for_every_command(launch, jobs):
    write_defaults(
        'hosts = ["a", "b[1-2]"]\nnproc = 2\ncpu = true\nscript = "mine.py"\nenv = ["A=1"]\nmaster-port = 9\n'
    )
    assert launch("-q")[0] == 7
    assert launch("--nproc 3 --hosts c other.py x")[0] == 7
    sizes = [(job.nproc, job.cpu, job.env, job.master_port, names) for job, names, *_ in jobs]
    assert sizes == [(2, True, {"A": "1"}, 9, ["a", "b1", "b2"]), (3, True, {"A": "1"}, 9, ["c"])]
    assert [job.program.target for job, *_ in jobs] == ["mine.py", "other.py"]
    assert [row["host"] for row in json.loads(launch("hosts --json")[1])] == ["a", "b1", "b2"]


@pytest.mark.parametrize(
    ("toml", "typed", "seconds"),
    [
        ("", "--queue", math.inf),
        ("", "--queue 2h", 7200),
        ("queue = false", "", None),
        ('queue = "2h"', "--queue", math.inf),
        ('queue = "2h"', "--no-queue", None),
    ],
)
def test_how_long_a_run_waits_for_gpus(launch, jobs, toml, typed, seconds):
    write_defaults(f'hosts = "a"\nnproc = 1\ncpu = true\n{toml}\n')
    assert launch(f"{typed} ./t.py")[0] == 7
    assert [(job.program.target, options.queue_s) for job, *_, options in jobs] == [("./t.py", seconds)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("launcher.toml", "gpu = 8\n", "launcher.toml: no option 'gpu'; did you mean 'gpus'?"),
        ("launcher.toml", "xyzzy = 8\n", "launcher.toml: no option 'xyzzy'"),
        ("launcher.toml", "no-sync = true\n", "launcher.toml: no option 'no_sync'; did you mean 'sync = false'?"),
        ("launcher.toml", "gpus = \n", "launcher.toml: Invalid value (at line 1, column 8)"),
    ],
)
def test_a_file_that_is_wrong_is_refused(launch, name, text, message):
    write_defaults(text, name)
    assert launch("hosts --hosts a") == (EXIT_USAGE, "", f"launch: {message}\n")


# what was wrong once


def test_a_switch_that_is_turned_off_contradicts_nothing(launch, jobs):
    write_defaults('hosts = "a"\ngpus = 8\ncpu = false\nno-check = true\n')
    assert launch("--no-cpu --with-check t.py")[0] == 7
    assert (jobs[0][0].nproc, jobs[0][-1].with_checks) == (8, True)


def test_collectives_look_at_this_machine_unless_hosts_are_named(launch, jobs):
    write_defaults('hosts = "a"\n')
    launch("2 --cpu", entry=cli.main_test_distributed)
    assert jobs[0][2] == "LocalTransport"


# in a Slurm allocation

SLURM_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
SLURM_LINE = "launch: hosts of Slurm job 7: 2 nodes, n[1-2]\n"
SLURM_TASK = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.fixture
def in_allocation(monkeypatch, folder):
    def enter(**more):
        monkeypatch.setattr("os.environ", {"COLUMNS": "100", "HOME": str(folder), **SLURM_JOB, **more})

    enter()
    return enter


@pytest.mark.parametrize(
    ("line", "hosts", "transport", "said"),
    [
        ("", ["n1", "n2"], "SrunTransport", SLURM_LINE),
        ("--num-nodes 1", ["n1"], "SrunTransport", SLURM_LINE),
        ("--transport fabric", ["n1", "n2"], "FabricTransport", SLURM_LINE),
        ("--hosts a,b", ["a", "b"], "FabricTransport", ""),
        ("--hosts n2 --transport srun", ["n2"], "SrunTransport", ""),
        ("--hostfile two", ["node1", "node2"], "FabricTransport", ""),
    ],
)
def test_an_allocation_gives_the_hosts_that_are_not_named(in_allocation, launch, jobs, line, hosts, transport, said):
    assert launch(f"{line} t.py") == (7, "", said)
    assert [job[1:3] for job in jobs] == [(hosts, transport)]


def test_a_file_may_say_the_transport_and_goes_before_the_allocation(in_allocation, launch, jobs):
    write_defaults('transport = "fabric"\n')
    assert launch("t.py") == (7, "", f"launch: using launcher.toml (transport)\n{SLURM_LINE}")
    write_defaults('hosts = "a"\n')
    assert launch("t.py") == (7, "", "launch: using launcher.toml (hosts)\n")
    assert [job[1:3] for job in jobs] == [(["n1", "n2"], "FabricTransport"), (["a"], "FabricTransport")]


def test_collectives_on_an_allocation(in_allocation, launch, jobs):
    for line in ("2 --cpu", "2 --cpu --transport srun"):
        launch(line, entry=cli.main_test_distributed)
    assert [job[2] for job in jobs] == ["LocalTransport", "SrunTransport"]


@pytest.mark.parametrize(
    ("line", "more", "said", "message", "fix"),
    [
        ("--transport srun --hosts n1,a t.py", {}, "", "--transport srun: a is not in Slurm job 7",
         "name its nodes, n[1-2], or use --transport fabric"),
        ("--transport srun --hosts a t.py", {"SLURM_JOB_ID": ""}, "", "--transport srun: not in a Slurm allocation",
         "start one with salloc or sbatch"),
        ("t.py", SLURM_TASK, "", "srun has started launch 2 times, and each would start its own run",
         "start it once, without srun: it reaches every node of the job by itself"),
        ("t.py", {"LAUNCH_MARK": "20261120-091233.ab12.0", "RANK": "3"}, "",
         "this is rank 3 of run 20261120-091233, and every rank would start a run", "start launch outside of a run"),
        ("hosts", {"SLURM_JOB_NODELIST": "n["}, "", "SLURM_JOB_NODELIST: 'n[' has an unmatched bracket",
         "write ranges as gpu[1-4,7]"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_in_an_allocation(in_allocation, launch, jobs, line, more, said, message, fix):
    in_allocation(**more)
    assert launch(line) == (EXIT_USAGE, "", f"{said}launch: {message}\n  fix: {fix}\n")
    assert jobs == []


def test_a_rank_starts_no_run_on_its_machine_either(launch, monkeypatch):
    monkeypatch.setattr("os.environ", {"COLUMNS": "100", "LAUNCH_MARK": "RUN.ab12.0", "RANK": "3"})
    code, _, err = launch("singlenode --nproc 1 --no-python --workdir / true")
    said = "launch: this is rank 3 of run RUN, and every rank would start a run\n  fix: start launch outside of a run\n"
    assert (code, err) == (EXIT_USAGE, said)


def test_commands_about_a_run_import_no_part_that_drives_one() -> None:
    """`ps`, `logs`, `wait` and `stop` would take twice as long to start."""
    commands = "ps, launcher.cli.logs, launcher.cli.wait, launcher.cli.stop, launcher.cli.answer"
    code = f"import sys, launcher.cli.{commands}; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "launcher.cli.answer" in found
    assert not {"asyncio", "launcher.session.session", "launcher.runs.attempt"} & {*found}
