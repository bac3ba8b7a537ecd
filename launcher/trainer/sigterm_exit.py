"""End a run after SIGTERM, with exit code 143."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from launcher import distributed
from launcher.distributed import World
from launcher.trainer.checkpoints.checkpoints import Checkpoints, Position
from launcher.trainer.journal import Journal
from launcher.trainer.stopping import EXIT_SIGTERM


def leave_together(journal: Journal, position: Position, saved: Path) -> NoReturn:
    """End all ranks, which have saved a checkpoint."""
    journal.tell_stop(f"step {position.step} saved in {saved}")
    distributed.barrier()
    leave(journal)


def leave_alone(journal: Journal, position: Position, checkpoints: Checkpoints, world: World) -> NoReturn:
    """Save on rank 0 what it can without the others, which are gone, then end this rank."""
    if world.is_main:
        path = checkpoints.save_alone(position)
        newest = checkpoints.newest()
        lost = f"not saved: a rank exited with its part of the model; newest checkpoint: {newest or 'none'}"
        said = f"saved in {path}" if path else lost
        journal.tell_stop(f"step {position.step} {said}", can_resume=newest is not None)
    leave(journal)


def leave(journal: Journal) -> NoReturn:
    """Finish the trackers, and exit with 143."""
    journal.close(EXIT_SIGTERM)
    distributed.leave(EXIT_SIGTERM)
