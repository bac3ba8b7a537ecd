"""examples/train_distributed_example.py, which people copy: killed, stopped and restarted, it loses nothing."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import torch
from machines.launches import start_launch
from machines.processes import wait_until

from tests.train.conftest import Rank, Starter

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "train_distributed_example.py")
WORDS = ["--data_size=128", "--batch_size=8", "--epochs=3", "--lr=0.0001", "--save_every=3"]

# It runs the example, of which rank 0 does something in its fourth save, in the middle of the second epoch.
IN_SAVE_4 = """
import os, runpy, signal, sys
saves = iter(range(1, 100))
def fsync(descriptor):
    if next(saves) == 4:
        {action}
os.fsync = fsync
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
HALF = "os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)"  # of a checkpoint is on the disk
DIES = IN_SAVE_4.format(action=f"{HALF}; os.kill(os.getpid(), signal.SIGKILL)")
STOPS = IN_SAVE_4.format(action="os.kill(os.getpid(), signal.SIGTERM)")

# It runs the example, of which one rank kills itself in the first attempt, once there is a checkpoint.
DIES_ONCE = f"""
import os, runpy, signal, sys, threading, time
from pathlib import Path
def die():
    while not list(Path("checkpoints").glob("step_*.pt")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["LAUNCH_ATTEMPT"] == "0" and os.environ["RANK"] == "1":
    threading.Thread(target=die, daemon=True).start()
runpy.run_path("{EXAMPLE}", run_name="__main__")
"""


def losses(text: str) -> list[str]:
    return re.findall(r"epoch \d+ of \d+: loss [\d.]+", text)


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def read_weights(folder: Path) -> torch.Tensor:
    state = torch.load(folder / "checkpoints" / saved(folder)[-1], weights_only=True)
    return torch.cat([state["model"]["weight"].flatten(), state["model"]["bias"]])


def start(starter: Starter, *words: str, size: int = 2, script: str = EXAMPLE) -> list[Rank]:
    return starter.start_ranks(size, lambda rank: [script, *([EXAMPLE] if script != EXAMPLE else []), *WORDS, *words])


def train_unbroken(starter: Starter) -> tuple[list[str], torch.Tensor]:
    """Return the losses and the weights of a run that nothing disturbs."""
    ranks = start(starter, "--save=unbroken/checkpoints")
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].stderr
    return losses(ranks[0].stdout), read_weights(starter.folder / "unbroken")


def test_a_run_that_is_killed_while_it_saves_resumes_from_a_whole_checkpoint(starter: Starter) -> None:
    """With another number of ranks, and the same batch in all: each sample is seen as often as in an unbroken run."""
    said, weights = train_unbroken(starter)
    (starter.folder / "dies.py").write_text(DIES)
    killed = start(starter, script="dies.py")
    assert killed[0].wait() == -signal.SIGKILL
    assert killed[1].wait() != 0
    assert saved(starter.folder) == ["step_00000003.pt", "step_00000006.pt", "step_00000008.pt", "unfinished"]
    alone = starter.start([EXAMPLE, *WORDS, "--batch_size=16"], warm=True)
    assert alone.wait() == 0, alone.stderr
    assert "attempt 0: 8 of 24 steps are in checkpoints\n" in alone.stdout
    assert losses(killed[0].stdout) + losses(alone.stdout) == said
    assert saved(starter.folder) == ["step_00000018.pt", "step_00000021.pt", "step_00000024.pt"]
    torch.testing.assert_close(read_weights(starter.folder), weights)


def test_ranks_save_together_at_sigterm_and_another_start_resumes_there(starter: Starter) -> None:
    """Only one rank gets the signal."""
    said, weights = train_unbroken(starter)
    (starter.folder / "stops.py").write_text(STOPS)
    ranks = start(starter, script="stops.py")
    assert [rank.wait() for rank in ranks] == [128 + signal.SIGTERM] * 2, ranks[0].stderr
    again = start(starter)
    assert [rank.wait() for rank in again] == [0, 0], again[0].stderr
    assert "attempt 0: 10 of 24 steps are in checkpoints\n" in again[0].stdout
    assert losses(ranks[0].stdout) + losses(again[0].stdout) == said
    torch.testing.assert_close(read_weights(starter.folder), weights)


def test_launch_restarts_a_run_whose_rank_died_and_lets_the_ranks_save_at_sigterm(
    starter: Starter, forking_python: Path
) -> None:
    """On this machine, without torchrun, whose imports would take most of the time."""
    (starter.folder / "dies_once.py").write_text(DIES_ONCE)
    # A rank whose other one is gone may need all of the time that it has to save.
    options = ("--nproc=2", "--cpu", "--start=plain", f"--python={forking_python}", "--restarts=1", "--stop-timeout=30")
    options += ("--env=OMP_NUM_THREADS=1", f"--env=PYTHONPATH={ROOT}")
    out, err = starter.folder / "launch.out", starter.folder / "launch.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        argv = ("singlenode", *options, "dies_once.py", *WORDS, "--epochs=100000")
        process = start_launch(*argv, cwd=starter.folder, stdout=stdout, stderr=stderr)
    running = Rank(process, out, err)
    starter.ranks.append(running)
    running.wait_for("attempt 1: ")
    assert wait_until(lambda: "saved " in running.stdout.partition("attempt 1: ")[2]), running.stderr
    (resumed,) = re.findall(r"attempt 1: (\d+) of 800000 steps are in checkpoints", running.stdout)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM
    assert "0 processes left on 1 host" in running.stderr
    (step,) = re.findall(r"SIGTERM: stopping at step (\d+)", running.stdout)
    assert 0 < int(resumed) < int(step)
    assert saved(starter.folder)[-1] == f"step_{int(step):08}.pt"
