"""Validation: the mean loss over samples that are never trained on; it is exact for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.distributed import World
from launcher.trainer.config import TrainConfig
from launcher.trainer.data import Loader, deal_validation
from launcher.trainer.optimization import Learner
from launcher.trainer.options import ConfigError
from launcher.trainer.rank0_work import share_from_main
from launcher.trainer.stopping import StopVote


class Evaluator:
    """Compute the validation loss on request."""

    def __init__(self, loader: Loader, config: TrainConfig, learner: Learner, world: World) -> None:
        table = learner.replica.table
        if config.evaluate_on == "main" and table.sharded:
            raise ConfigError(f"evaluate_on main needs the whole model on rank 0, but parallel {table.kind} splits it")
        self._learner = learner
        self._world = world
        self._loader = loader
        self.size = loader.task.validation_size
        self._all_evaluate = config.evaluate_on == "all"
        self._shares, self._share = (table.data_size, table.data_rank) if self._all_evaluate else (1, 0)
        self._batch_size = table.batch_size

    def evaluate(self, vote: StopVote) -> float | None:
        """Return the mean loss over all samples, each counted once; None once the ranks agreed to stop."""
        # A vote finishes only if all ranks take part in it.
        total = self.sum_up(vote.poll) if self._all_evaluate else self.sum_up_on_main(vote)
        if vote.agreed:
            return None
        # Ranks that share matrices have seen the same samples: both sums grow alike, so the mean stays the same.
        dist.all_reduce(total)
        return float(total[0] / total[1])

    def sum_up_on_main(self, vote: StopVote) -> Tensor:
        """Return rank 0's sum there, and zeros on the other ranks, which wait for it past the time limit.

        SIGTERM ends it on rank 0; then all ranks vote.
        """
        total = torch.zeros(2, dtype=torch.float64, device=self._world.device)

        def validate() -> None:
            total.add_(self.sum_up(lambda: vote.requested))

        share_from_main(validate, self._world)
        vote.decide()
        return total

    def sum_up(self, must_stop: Callable[[], bool]) -> Tensor:
        """Return the sum of this rank's sample losses, and the number of samples."""
        model, total = self._learner.replica.model, torch.zeros(2, dtype=torch.float64, device=self._world.device)
        parts = list(deal_validation(self.size, self._batch_size, self._shares, self._share))
        # An empty batch has no mean: one sample takes its place, with a weight of 0.
        batches = self._loader.load_validation(part or range(1) for part in parts)
        model.eval()
        with torch.no_grad():
            for batch, part in zip(batches, parts):  # noqa: B905  # Python 3.9 has no `strict`
                total[0] += self._learner.compute_loss(model, batch).double() * len(part)
                total[1] += len(part)
                if must_stop():
                    break
        model.train()
        return total
