"""Logs as they are read: exactly what a rank wrote, all in the order of time, and as much as there is."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.logs import open_log

from launcher.clock import utc_offset
from launcher.output import log_reader
from launcher.output.lines import STDERR, STDOUT
from launcher.output.log_reader import Choice, LogLine, LogPrinter, RunLogs, as_shown, find_since, follow
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import OutputStreams

HOSTS = ("gpu1", "fe80::1")


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_795_000_000.0

    def __call__(self) -> float:
        return self.now


def write_logs(folder: Path, clock: Clock) -> list[NodeOutput]:
    def unexpected(path: Path, error: OSError) -> None:
        raise error

    outputs = []
    for index, host in enumerate(HOSTS):
        log = open_log(folder / f"node_{index}.log", unexpected, folder / "files")
        outputs.append(NodeOutput(host, log, None, clock=clock))
        outputs[-1].first_rank = 2 * index
    return outputs


def texts(lines: list[LogLine]) -> list[bytes]:
    return [line.text for line in lines]


BYTES = st.binary(max_size=40) | st.text(st.sampled_from("ab\n\r"), max_size=40).map(str.encode)


@given(pieces=st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), BYTES), max_size=20))
def test_a_rank_gets_its_bytes_back(tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("logs")
    first, second = write_logs(folder, Clock())
    for stream, data in pieces:
        first.feed(1, stream, data)
        first.feed(0, stream, b"of another rank\n")
        second.feed(1, stream, b"of another host\n")
    for output in (first, second):
        output.finish()
    lines = [*RunLogs(folder, HOSTS, Choice(rank=1)).read()]
    for stream in (STDOUT, STDERR):
        written = b"".join(data for each, data in pieces if each == stream)
        read = b"".join(line.content for line in lines if line.is_stderr == (stream == STDERR))
        assert read == written


def test_lines_come_in_the_order_of_time_and_as_they_are_written(tmp_path: Path) -> None:
    clock = Clock()
    first, second = write_logs(tmp_path, clock)
    logs = RunLogs(tmp_path, HOSTS, Choice())
    assert [*logs.read()] == []
    first.feed(0, STDOUT, b"one\n")
    clock.now += 1
    second.feed(0, STDOUT, b"two\n")
    clock.now += 1
    first.feed(0, STDOUT, b"three\nhalf")
    assert texts([*logs.read()]) == [b"one", b"two", b"three"]
    assert [*logs.read()] == []
    first.feed(0, STDOUT, b" and half\n")
    assert texts([*logs.read()]) == [b"half and half"]
    logs.close()


def test_an_address_is_no_rank(tmp_path: Path) -> None:
    """`[fe80::1]` is torchrun on that host, and `[fe80::1:3]` its rank 3."""
    _, second = write_logs(tmp_path, Clock())
    second.feed(None, STDERR, b"torchrun\n")
    second.feed(1, STDOUT, b"rank\n")
    lines = [*RunLogs(tmp_path, HOSTS, Choice()).read()]
    assert [(line.host, line.rank) for line in lines] == [("fe80::1", None), ("fe80::1", 3)]
    assert texts([*RunLogs(tmp_path, HOSTS, Choice(rank=1)).read()]) == []


def test_one_attempt_and_one_node(tmp_path: Path) -> None:
    first, second = write_logs(tmp_path, Clock())
    for number in range(3):
        for output in (first, second):
            if number:
                output.note(f"---- restart {number} ----")
            output.feed(0, STDOUT, b"---- restart 9 ----\n")  # a rank may print anything
            output.feed(0, STDOUT, b"attempt %d\n" % number)
    chosen = [*RunLogs(tmp_path, HOSTS, Choice(attempt=1)).read()]
    assert texts(chosen).count(b"attempt 1") == 2
    assert not {b"attempt 0", b"attempt 2"} & {*texts(chosen)}
    assert {line.host for line in RunLogs(tmp_path, HOSTS, Choice(node=1)).read()} == {"fe80::1"}


def test_the_last_minutes(tmp_path: Path) -> None:
    clock = Clock()
    first, _ = write_logs(tmp_path, clock)
    for number in range(4):
        first.feed(0, STDOUT, b"minute %d\n" % number)
        clock.now += 60
    since = find_since(125, utc_offset(), datetime.fromtimestamp(clock.now, timezone.utc))
    assert texts([*RunLogs(tmp_path, HOSTS, Choice(since=since)).read()]) == [b"minute 2", b"minute 3"]


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_PIECE_BYTES", 1000)
    lines = [f"2026-11-20 09:{n // 60:02}:{n % 60:02}.000 [gpu1:0] {'x' * (n % 50)}\n" for n in range(3600)]
    (tmp_path / "node_0.log").write_text("".join(lines))
    for stamp in ("2026-11-20 08:00:00.000", "2026-11-20 09:29:59.500", "2026-11-20 09:58:20.000", "2027-"):
        log = log_reader.LogFile(tmp_path / "node_0.log", HOSTS, since=stamp)
        read = [line.raw.decode() + "\n" for line in log.read()]
        wanted = [line for line in lines if line[:23] >= stamp]
        assert [line for line in read if line[:23] >= stamp] == wanted
        assert len("".join(read)) <= len("".join(wanted)) + 1000
        log.close()


def test_a_time_in_the_zone_of_the_stamps() -> None:
    now = datetime(2026, 11, 20, 9, 12, 33, 500_000, tzinfo=timezone.utc)
    stamps = {"+00:00": "09:02:33.500", "+05:30": "14:32:33.500", "-08:00": "01:02:33.500"}
    assert {offset: find_since(600, offset, now) for offset in stamps} == {
        offset: f"2026-11-20 {stamp}" for offset, stamp in stamps.items()
    }


def test_attach_shows_the_bar_of_one_rank_and_what_all_ranks_say(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output, _ = write_logs(tmp_path, Clock())
    for rank in (0, 1):
        output.feed(rank, STDOUT, b"\r10%\r20%\r30%\n\r1\r \roops\n\r5\r6")
        output.feed(rank, STDERR, b"loss 1.5\n\r7\r  \r")
    output.finish()
    streams = OutputStreams(terminals=frozenset(), is_one_file=False, with_color=False)
    follow(RunLogs(tmp_path, HOSTS, Choice()), LogPrinter(streams, as_shown(streams, HOSTS)), lambda: False)
    shown = [b"[gpu1:0] 10%", b"[gpu1:0] 30%", b"[gpu1:0] oops", b"[gpu1:1] oops", b"[gpu1:0] 6"]
    said = b"[gpu1:0] loss 1.5\n[gpu1:1] loss 1.5\n"
    assert capfdbinary.readouterr() == (b"".join(line + b"\n" for line in shown), said)
