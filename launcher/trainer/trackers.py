"""Where a run's metrics go: always to JSON lines; on request to TensorBoard, MLflow and Weights & Biases.

None of them can stop the training: one that fails prints so once, and then gets no more metrics.
They are configured through their own environment variables (WANDB_MODE, MLFLOW_TRACKING_URI and so on).
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from launcher.trainer.options import ConfigError

METRICS_FILE = "metrics.jsonl"
# A stopped job has about 15 s before it is killed, and spends some of them on its checkpoint.
FINISH_TIMEOUT_S = 8.0
EXIT_SIGTERM = 128 + signal.SIGTERM


class Tracker(Protocol):
    """A destination of a run's metrics; any method may raise any exception."""

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Begin a run, or resume it after `resumed_step`; 0 means a new run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""

    def finish(self, exit_code: int) -> None:
        """End the run; no other call follows."""


class JsonLines:
    """Write one JSON object per line, for people and for `--plot`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Keep all lines, also those of steps that will be repeated; end a line that a crash cut off."""
        del config, resumed_step  # the checkpoint holds them
        with self._path.open("ab+") as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                file.write(b"\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line to the file before returning; NaN and infinity, which JSON lacks, become null."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")

    def finish(self, exit_code: int) -> None:
        """Do nothing: every line is written already."""


class TensorBoard:
    """Write event files to SAVE_DIR/tensorboard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter
        self._folder = folder / "tensorboard"

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Hide what an earlier attempt wrote for the steps that will be repeated."""
        first_step = resumed_step + 1 if resumed_step else 0
        self._writer = self._open(str(self._folder), purge_step=first_step)
        self._writer.add_text("config", "\n".join(f"    {name}: {value}" for name, value in config.items()), first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric, and flush at once: a killed rank can't."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, exit_code: int) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow:
    """Log to a run on the server or in the store that MLFLOW_TRACKING_URI names; without it, to mlflow.db here."""

    def __init__(self, folder: Path) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        self._run_id = folder / "mlflow_run_id"

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Continue the resumed run, whose parameters can't be changed any more, or begin a new one."""
        earlier = _read_run_id(self._run_id, resumed_step)
        run = self._mlflow.start_run(run_id=earlier)
        self._run_id.write_text(run.info.run_id)
        if earlier is None:
            self._mlflow.log_params(dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send all metrics in one request."""
        self._mlflow.log_metrics(dict(metrics), step=step)

    def finish(self, exit_code: int) -> None:
        """Record whether the run succeeded, was stopped by SIGTERM, or failed."""
        self._mlflow.end_run({0: "FINISHED", EXIT_SIGTERM: "KILLED"}.get(exit_code, "FAILED"))


class WeightsAndBiases:
    """Log to a run at wandb.ai, or where WANDB_BASE_URL points; WANDB_MODE=offline keeps it in ./wandb."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run_id = folder / "wandb_run_id"

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Continue the resumed run, or begin a new one."""
        earlier = _read_run_id(self._run_id, resumed_step)
        options = {"id": earlier, "resume": "allow"} if earlier else {}
        self._run = self._wandb.init(config=dict(config), **options)
        self._run_id.write_text(self._run.id)
        # wandb's own step can't go back, and would drop the steps that a resumed run repeats.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to wandb's own process, which sends them."""
        self._run.log({"step": step, **metrics})

    def finish(self, exit_code: int) -> None:
        """Wait until everything is sent, and end wandb's own process."""
        self._run.finish(exit_code=exit_code)
        self._wandb.teardown()


BACKENDS: dict[str, tuple[Callable[[Path], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "wandb": (WeightsAndBiases, "wandb"),
}


class Guard:
    """Call a tracker until it fails for the first time."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self._tracker: Tracker | None = tracker

    def call(self, method: Callable[[Tracker], None]) -> None:
        """Call a method of the tracker, unless one has failed before."""
        if self._tracker is None:
            return
        try:
            method(self._tracker)
        except Exception as error:  # noqa: BLE001  # a server or a disk can raise anything, and the training continues
            self._tracker = None
            reason = str(error).strip().partition("\n")[0]
            print(
                f"{self.name} gets no more metrics: {type(error).__name__}: {reason}"[:500], file=sys.stderr, flush=True
            )

    def wait(self, deadline: float) -> None:
        """Do nothing: each call was finished when it returned."""


class Background:
    """Call a guarded tracker in a thread, since a slow or lost server would delay rank 0, and with it all ranks."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=guard.name, daemon=True)
        self._thread.start()

    def call(self, method: Callable[[Tracker], None]) -> None:
        """Queue the call behind the earlier ones."""
        self._calls.put(method)

    def wait(self, deadline: float) -> None:
        """Wait for the thread until `deadline`; if it hasn't finished by then, print that."""
        self._calls.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            print(f"{self._guard.name} did not take the last metrics in time", file=sys.stderr, flush=True)

    def _work(self) -> None:
        for method in iter(self._calls.get, None):
            self._guard.call(method)


class Trackers:
    """Combine all trackers of a run into one that never fails."""

    def __init__(self, trackers: Sequence[Guard | Background]) -> None:
        self._trackers = trackers

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        """Begin a run, or resume it after `resumed_step`."""
        self._call(lambda tracker: tracker.start(config, resumed_step))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        taken = dict(metrics)  # the caller may change its own
        self._call(lambda tracker: tracker.log(step, taken))

    def finish(self, exit_code: int) -> None:
        """End the run within `FINISH_TIMEOUT_S`; call it after saving, which matters more."""
        self._call(lambda tracker: tracker.finish(exit_code))
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        for tracker in self._trackers:
            tracker.wait(deadline)

    def _call(self, method: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            tracker.call(method)


def open_trackers(names: Sequence[str], folder: Path) -> Trackers:
    """Open the trackers of a run that saves in `folder`; only rank 0 has metrics, so only rank 0 calls it."""
    others = [Guard(name, _open(name, folder)) for name in dict.fromkeys(names)]
    lines = Guard(METRICS_FILE, JsonLines(folder / METRICS_FILE))
    return Trackers([lines, *map(Background, others)])


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics.jsonl; skip a line that a crash cut off; a missing file has no lines."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    with file:
        for text in file:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                yield line


def _open(name: str, folder: Path) -> Tracker:
    if name not in BACKENDS:
        raise ConfigError(f"--track: unknown tracker {name!r}, must be one of {', '.join(BACKENDS)}")
    open_tracker, package = BACKENDS[name]
    try:
        return open_tracker(folder)
    except ImportError as error:
        raise ConfigError(f"--track {name}: {error} on rank 0's host; fix: run pip install {package}") from None


def _read_run_id(path: Path, resumed_step: int) -> str | None:
    """Return the id of the run to resume, or None for a new run."""
    return path.read_text().strip() if resumed_step and path.exists() else None
