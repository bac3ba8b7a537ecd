"""Trackers: the JSON lines, and the real packages behind the others."""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.trainer.options import ConfigError
from launcher.trainer.trackers import Background, Guard, JsonLines, Trackers, open_trackers, read_metrics
from tests.train.conftest import Starter

CONFIG = {"lr": 0.1, "data": ""}
LOST = re.compile("(no more|the last) metrics")


def run_steps(folder: Path, names: list[str], first: int, last: int, *, exit_code: int = 0) -> None:
    trackers = open_trackers(names, folder)
    trackers.start(CONFIG, first - 1)
    for step in range(first, last + 1):
        trackers.log(step, {"loss": 100.0 * first + step})
    trackers.finish(exit_code)


def test_a_line_is_in_the_file_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    trackers = open_trackers([], tmp_path)
    trackers.start(CONFIG, 0)
    trackers.log(1, {"epoch": 1, "loss": 5.5})
    trackers.log(2, {"epoch": 1, "loss": math.nan, "lr": math.inf})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "epoch": 1, "loss": 5.5}\n{"step": 2, "epoch": 1, "loss": null, "lr": null}\n'
    )


def test_every_run_in_a_folder_appends(tmp_path: Path) -> None:
    run_steps(tmp_path, [], 1, 4)
    run_steps(tmp_path, [], 3, 5)
    run_steps(tmp_path, [], 1, 1)
    lines = [(line["step"], line["loss"]) for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert lines == [(1, 101), (2, 102), (3, 103), (4, 104), (3, 303), (4, 304), (5, 305), (1, 101)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    "rest", ['{"step": 3, "lo', '{"step": 3', "\0\0\0", "\xff", "[1]\n", '{"loss": 1}\n', "[" * 100_000]
)
def test_a_line_cut_off_by_a_crash_is_survived(rest: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = b'{"step": 1}\n{"step": 2}\n' + rest.encode("latin-1")
    path.write_bytes(written)
    lines = JsonLines(path)
    lines.start({}, 2)
    lines.log(4, {})
    assert [line["step"] for line in read_metrics(path) if line["step"] != 3] == [1, 2, 4]
    assert path.read_bytes() == written.rstrip(b"\n") + b'\n{"step": 4}\n'


def test_a_full_disk_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trackers = open_trackers([], tmp_path)
    trackers.start(CONFIG, 0)
    path = tmp_path / "metrics.jsonl"
    path.unlink()
    path.symlink_to("/dev/full")
    trackers.log(1, {"loss": 1.0})
    trackers.log(2, {"loss": 1.0})
    trackers.finish(0)
    said = "metrics.jsonl gets no more metrics: OSError: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == said


def test_a_tracker_that_is_unknown_or_not_installed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as unknown:
        open_trackers(["wandb2"], tmp_path)
    assert str(unknown.value) == "--track: unknown tracker 'wandb2', must be one of tensorboard, mlflow, wandb"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError) as missing:
        open_trackers(["wandb"], tmp_path)
    assert str(missing.value) == (
        "--track wandb: import of wandb halted; None in sys.modules on rank 0's host; fix: run pip install wandb"
    )


class Server:
    """A tracker whose server answers when it is let, and breaks at one step."""

    def __init__(self, *, broken_step: int = 0) -> None:
        self.answers = threading.Event()
        self.seen: list[object] = []
        self._broken_step = broken_step

    def start(self, config: Mapping[str, object], resumed_step: int) -> None:
        assert self.answers.wait(DEADLINE_S)
        self.seen.append(dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._broken_step:
            raise ConnectionError("gone\nwith a long story")
        self.seen.append((step, dict(metrics)))

    def finish(self, exit_code: int) -> None:
        self.seen.append(exit_code)


def test_a_slow_server_holds_nothing_up_and_gets_everything_in_order() -> None:
    server = Server()
    trackers = Trackers([Background(Guard("slow", server))])
    trackers.start(CONFIG, 0)
    metrics = {"loss": 1.0}
    trackers.log(1, metrics)
    metrics["loss"] = 2.0
    trackers.log(2, metrics)
    assert server.seen == []
    server.answers.set()
    trackers.finish(143)
    assert server.seen == [CONFIG, (1, {"loss": 1.0}), (2, {"loss": 2.0}), 143]


def test_a_server_that_goes_is_said_once_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    broken, whole = Server(broken_step=2), Server()
    trackers = Trackers([Background(Guard(name, server)) for name, server in (("broken", broken), ("whole", whole))])
    for server in (broken, whole):
        server.answers.set()
    trackers.start({}, 0)
    for step in (1, 2, 3):
        trackers.log(step, {})
    trackers.finish(0)
    assert broken.seen == [{}, (1, {})]
    assert whole.seen == [{}, (1, {}), (2, {}), (3, {}), 0]
    assert capsys.readouterr().err == "broken gets no more metrics: ConnectionError: gone\n"


def test_a_server_that_never_answers_is_left_behind_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launcher.trainer.trackers.FINISH_TIMEOUT_S", 0.1)
    server = Server()
    trackers = Trackers([Background(Guard("stuck", server))])
    trackers.start({}, 0)
    trackers.finish(0)
    assert capsys.readouterr().err == "stuck did not take the last metrics in time\n"
    server.answers.set()  # and its thread ends


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_steps(tmp_path, ["tensorboard"], 1, 4)
    run_steps(tmp_path, ["tensorboard"], 3, 5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 101), (2, 102), (3, 303), (4, 304), (5, 305)
    ]  # fmt: skip
    (_, text) = events.Tensors("config/text_summary")
    assert text.tensor_proto.string_val[0] == b"    lr: 0.1\n    data: "


def test_mlflow_goes_on_with_the_run_that_is_resumed(tmp_path: Path, use_mlflow: Callable[[Path], None]) -> None:
    use_mlflow(tmp_path / "store")
    from mlflow import MlflowClient

    run_steps(tmp_path, ["mlflow"], 1, 2, exit_code=143)
    run_id = (tmp_path / "mlflow_run_id").read_text()
    assert MlflowClient().get_run(run_id).info.status == "KILLED"
    run_steps(tmp_path, ["mlflow"], 3, 3)
    run = MlflowClient().get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "data": ""}
    assert [(metric.step, metric.value) for metric in MlflowClient().get_metric_history(run_id, "loss")] == [
        (1, 101), (2, 102), (3, 303)
    ]  # fmt: skip
    run_steps(tmp_path, ["mlflow"], 1, 1, exit_code=1)
    other = (tmp_path / "mlflow_run_id").read_text()
    assert other != run_id
    assert MlflowClient().get_run(other).info.status == "FAILED"


def test_mlflow_whose_store_goes_does_not_end_the_training(
    tmp_path: Path, use_mlflow: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    use_mlflow(tmp_path / "no" / "store")
    (tmp_path / "no").touch()
    run_steps(tmp_path, ["mlflow"], 1, 2)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if LOST.search(line)] == said[-1:]
    assert said[-1].startswith("mlflow gets no more metrics: ")


@pytest.fixture
def use_mlflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Have MLflow keep its runs in a folder: what a server needs is in the large package only."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    return lambda store: monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())


WANDB_RUN = """
import sys
from pathlib import Path
from launcher.trainer.trackers import open_trackers
trackers = open_trackers(["wandb"], Path.cwd())
trackers.start({"lr": 0.1}, int(sys.argv[1]))
for step in (1, 2):
    trackers.log(step, {"loss": 10.0 * step})
trackers.finish(0)
print("done", flush=True)
"""


def test_wandb_offline_keeps_the_run_and_leaves_no_process(tmp_path: Path, starter: Starter) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    env = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_RUN_ID": "first", "TMPDIR": str(tmp_path)}
    rank = starter.start(["-c", WANDB_RUN, "0"], env)
    assert rank.wait() == 0, rank.stderr
    assert rank.stdout == "done\n"
    assert not LOST.search(rank.stderr)
    assert (tmp_path / "wandb_run_id").read_text() == "first"
    assert read_wandb(tmp_path) == [{"step": 1, "loss": 10.0}, {"step": 2, "loss": 20.0}]
    deadline = time.monotonic() + DEADLINE_S
    while left := find_processes(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_wandb_without_a_login_does_not_end_the_training(tmp_path: Path, starter: Starter) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    home = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "WANDB_DIR")}
    env = {"WANDB_MODE": "online", "WANDB_API_KEY": "", **home}
    rank = starter.start(["-c", WANDB_RUN, "0"], env)
    assert rank.wait() == 0, rank.stderr
    said = [line for line in rank.stderr.splitlines() if LOST.search(line)]
    assert said == ["wandb gets no more metrics: UsageError: No API key configured. Use `wandb login` to log in."]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def read_wandb(folder: Path) -> list[dict[str, float]]:
    """Return the history in the file that `wandb sync` would send: a log in LevelDB's format, here of one block."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content = path.read_bytes()
    start, history = len(b":W&B???"), []
    while start < len(content):
        _, size, _ = struct.unpack_from("<IHB", content, start)
        record = Record.FromString(content[start + 7 : start + 7 + size])
        start += 7 + size
        items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if items:
            history.append({name: value for name, value in items.items() if not name.startswith("_")})
    return history


def find_processes(word: str) -> list[str]:
    """Return the command lines of the processes that have `word` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found
