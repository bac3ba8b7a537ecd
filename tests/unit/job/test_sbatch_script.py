"""The text of a batch script, and what is refused before there is one; real sbatch takes it in tests/slurm."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.errors import UsageError
from launcher.job.sbatch_script import Batch, batch_text, check_batch, time_limit_s

SMALL = Batch(
    argv=("/opt/bin/launch", "--gpus", "8", "train.py", "--lr", "3e-4"),
    job_name="train",
    nodes=4,
    gpus=8,
    folder="/home/ann/project",
    log_dir="logs",
    stop_timeout_s=15.0,
)


def changed(**values: object) -> Batch:
    return dataclasses.replace(SMALL, **values)  # type: ignore[arg-type]


def test_the_script_of_a_small_job() -> None:
    assert batch_text(SMALL) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train\n"
        "#SBATCH --nodes=4\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gres=gpu:8\n"
        "#SBATCH --chdir=/home/ann/project\n"
        "#SBATCH --output=logs/slurm-%j.out\n"
        "#SBATCH --error=logs/slurm-%j.err\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --signal=B:TERM@60\n"
        "\n"
        "# Written by `launch sbatch`.\n"
        "# Slurm doesn't create the directory of its logs: mkdir -p /home/ann/project/logs\n"
        "# 60 s before the time limit, launch gets a signal; ranks have 15 s to save.\n"
        "exec /opt/bin/launch --gpus 8 train.py --lr 3e-4\n"
    )


def test_the_script_of_a_job_that_goes_back_into_the_queue() -> None:
    batch = changed(
        argv=("launch", "--nproc", "2", "--cpu", "it's.py", "$HOME", "a b"),
        job_name="a job",
        nodes=1,
        gpus=0,
        folder='/data/ann\'s "#1"',
        log_dir="/logs",
        stop_timeout_s=300.5,
        time="1-12",
        cpus_per_task=16,
        directives=("--exclusive", "--mail-type=END"),
        requeue=True,
    )
    assert batch_text(batch) == (
        "#!/bin/bash\n"
        '#SBATCH --job-name="a job"\n'
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --cpus-per-task=16\n"
        "#SBATCH --time=1-12\n"
        '#SBATCH --chdir="/data/ann\'s \\"#1\\""\n'
        "#SBATCH --output=/logs/slurm-%j.out\n"
        "#SBATCH --error=/logs/slurm-%j.err\n"
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --signal=B:USR1@346\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --mail-type=END\n"
        "\n"
        "# Written by `launch sbatch`.\n"
        "# Slurm doesn't create the directory of its logs: mkdir -p /logs\n"
        "# 346 s before the time limit, launch gets a signal; ranks have 300.5 s to save.\n"
        "# Then the job is requeued; SLURM_RESTART_COUNT counts its restarts, for the ranks too.\n"
        "trap 'is_due=yes; kill -TERM \"$launch\"' USR1\n"
        "trap 'kill -TERM \"$launch\"' TERM\n"
        "launch --nproc 2 --cpu 'it'\"'\"'s.py' '$HOME' 'a b' &\n"
        "launch=$!\n"
        'while wait "$launch"; code=$?; kill -0 "$launch" 2>/dev/null; do :; done\n'
        'if [ -n "${is_due-}" ] && [ "$code" -ne 0 ]; then\n'
        '    scontrol requeue "$SLURM_JOB_ID"\n'
        "fi\n"
        'exit "$code"\n'
    )


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("0", 0),
        ("90", 90 * 60),
        ("90:30", 90 * 60 + 30),
        ("12:00:00", 12 * 3600),
        ("2-12", 60 * 3600),
        ("2-12:30", 60 * 3600 + 30 * 60),
        ("2-12:30:05", 60 * 3600 + 30 * 60 + 5),
    ],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, limit_s: int) -> None:
    assert time_limit_s(text) == limit_s


@pytest.mark.parametrize("text", ["", "12h", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "1 2", "٣"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_batch(changed(time=text))
    assert caught.value.message == f"--time: must be a time as Slurm writes it, got {text!r}"
    assert caught.value.fix == "write 90 (minutes), 12:00:00 or 2-12"


@pytest.mark.parametrize("values", [{"time": "2"}, {"time": "0"}])
def test_what_sbatch_takes_is_not_refused(values: dict[str, object]) -> None:
    check_batch(changed(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"time": "1"}, "--time 1: its last 60 s are for saving and stopping"),
        ({"time": "10", "stop_timeout_s": 600}, "--time 10: its last 645 s are for saving and stopping"),
        ({"stop_timeout_s": 70000}, "--stop-timeout 70000: Slurm can't signal that long before the end"),
        ({"directives": ("exclusive",)}, "--directive: must be an option of sbatch, got 'exclusive'"),
        ({"directives": ("--x\nrm",)}, "not allowed in a batch script: '--x\\nrm'"),
        ({"folder": "/a%j"}, "/a%j: Slurm treats % and \\ in the path of its logs specially"),
        ({"log_dir": "a\\b"}, "a\\b: Slurm treats % and \\ in the path of its logs specially"),
        ({"folder": "/a\nb"}, "not allowed in a batch script: '/a\\nb'"),
    ],
)
def test_what_sbatch_would_refuse_or_misread_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_batch(changed(**values))
    assert caught.value.message == message
