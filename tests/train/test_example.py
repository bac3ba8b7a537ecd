"""examples/train_distributed_example.py, which people copy: killed, stopped and restarted, it loses nothing."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import torch
from machines.launches import start_launch
from machines.patience import NEVER_S

from tests.train.conftest import Rank, Starter

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "train_distributed_example.py")
STEPS = 8  # of each epoch
WORDS = ["--data_size=128", "--batch_size=8", "--lr=0.0001", "--save_every=3"]

# It runs the example on a disk that has half of a checkpoint when the process is killed.
DIES = """
import os, runpy, signal, sys
saves = iter(range(1, 100))
def fsync(descriptor):
    if next(saves) == 4:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""

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


def train_unbroken(starter: Starter, epochs: int) -> tuple[list[str], torch.Tensor]:
    """Return the losses and the weights of a run that nothing disturbs."""
    ranks = start(starter, f"--epochs={epochs}", "--save=unbroken/checkpoints")
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].stderr
    return losses(ranks[0].stdout), read_weights(starter.folder / "unbroken")


def test_a_run_that_is_killed_while_it_saves_resumes_from_a_whole_checkpoint(starter: Starter) -> None:
    """With another number of ranks, and the same batch in all: each sample is seen as often as in an unbroken run."""
    said, weights = train_unbroken(starter, 3)
    (starter.folder / "dies.py").write_text(DIES)
    killed = start(starter, "--epochs=3", script="dies.py")
    assert killed[0].wait() == -signal.SIGKILL
    assert killed[1].wait() != 0
    assert saved(starter.folder) == ["step_00000003.pt", "step_00000006.pt", "step_00000008.pt", "unfinished"]
    alone = starter.start([EXAMPLE, *WORDS, "--epochs=3", "--batch_size=16"], warm=True)
    assert alone.wait() == 0, alone.stderr
    assert "attempt 0: 8 of 24 steps are in checkpoints\n" in alone.stdout
    assert losses(killed[0].stdout) + losses(alone.stdout) == said
    assert saved(starter.folder) == ["step_00000018.pt", "step_00000021.pt", "step_00000024.pt"]
    torch.testing.assert_close(read_weights(starter.folder), weights)


def test_ranks_save_together_at_sigterm_and_another_start_resumes_there(starter: Starter) -> None:
    """Only one rank gets the signal, in the middle of an epoch."""
    said, weights = train_unbroken(starter, 60)
    ranks = start(starter, "--epochs=60", "--save_every=100000")
    ranks[0].wait_for("saved ")
    ranks[1].process.send_signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [128 + signal.SIGTERM] * 2, ranks[0].stderr
    again = start(starter, "--epochs=60")
    assert [rank.wait() for rank in again] == [0, 0], again[0].stderr
    both = losses(ranks[0].stdout) + losses(again[0].stdout)
    assert [pair for pair in zip(both, said, strict=True) if pair[0] != pair[1]] == []
    torch.testing.assert_close(read_weights(starter.folder), weights)


def launch(starter: Starter, python: Path, script: str, *words: str, restarts: int = 0, stop: float = 30) -> Rank:
    """Start two ranks on this machine, without torchrun, whose imports would take most of the time.

    stop: seconds that the ranks have to save; one whose other rank is gone may need all of them.
    """
    options = ("--nproc=2", "--cpu", "--start=plain", f"--python={python}", "--env=OMP_NUM_THREADS=1")
    options += (f"--restarts={restarts}", f"--stop-timeout={stop:g}", f"--env=PYTHONPATH={ROOT}")
    out, err = starter.folder / "launch.out", starter.folder / "launch.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        argv = ("singlenode", *options, script, *WORDS, *words)
        process = start_launch(*argv, cwd=starter.folder, stdout=stdout, stderr=stderr)
    starter.ranks.append(Rank(process, out, err))
    return starter.ranks[-1]


def test_sigterm_to_launch_lets_the_ranks_save(starter: Starter, forking_python: Path) -> None:
    running = launch(starter, forking_python, EXAMPLE, "--epochs=100000", "--save_every=100000", stop=NEVER_S)
    running.wait_for("saved ")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM
    assert "0 processes left on 1 host" in running.stderr
    (step,) = re.findall(r"SIGTERM: stopping at step (\d+)", running.stdout)
    again = starter.start([EXAMPLE, *WORDS, "--epochs=1"], warm=True)
    again.wait_for(f"attempt 0: {step} of ")


def test_launch_restarts_a_run_whose_rank_died(starter: Starter, forking_python: Path) -> None:
    said, weights = train_unbroken(starter, 20)
    (starter.folder / "dies_once.py").write_text(DIES_ONCE)
    running = launch(starter, forking_python, "dies_once.py", "--epochs=20", restarts=1)
    assert running.wait() == 0, running.stderr
    step = int(re.findall(r"attempt 1: (\d+) of 160 steps are in checkpoints", running.stdout)[0])
    assert 0 < step < STEPS * 20
    assert set(losses(running.stdout)) == set(said)  # the epoch in which it died may have ended before and after
    torch.testing.assert_close(read_weights(starter.folder), weights)
