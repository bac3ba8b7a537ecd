"""Output: whole lines out of any pieces, readable progress bars, prefixes, node logs, a terminal that never stalls."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import threading
import time
import tty
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines.logs import open_log
from machines.patience import DEADLINE_S, NEVER_S, slowed

from launcher.clock import iso_time
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.output.console import Console, Folds
from launcher.output.display import PrefixDisplay, json_lines
from launcher.output.lines import LINE_BYTES, STDERR, STDOUT, TAIL_BYTES, BarTurn, LineStream
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import OutputStreams, Style, describe_error, find_streams, tell
from launcher.output.terminal import QUEUE_BYTES, Terminal

AT = 1_795_335_153.123  # when lines came
# The stamps are local: the offset of this machine is no part of what is tested here.
STAMP = re.compile(rb"^2026-11-2\d \d\d:\d\d:33\.123 ", re.MULTILINE)

cuts = st.lists(st.integers(0), max_size=12)


def pieces_of(data, cuts):
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(borders)]


def read_stream(pieces, *, seconds_apart=0.0):
    """Return all lines that go to the log and to the screen; each piece comes so much later than the one before."""
    now = [100.0]
    lines = LineStream(BarTurn(clock=lambda: now[0]))
    log, screen = b"", b""
    for piece in [*pieces, None]:
        for_log, for_screen = lines.finish() if piece is None else lines.feed(piece)
        log, screen = log + b"".join(each.lines for each in for_log), screen + for_screen
        now[0] += seconds_apart
    return log, screen


# lines


@given(st.text(st.sampled_from("aé€😀\n\t\x1b"), max_size=60), cuts)
def test_a_text_is_the_same_in_any_pieces(text, cuts):
    data = text.encode()
    whole = data if not data or data.endswith(b"\n") else data + b"\n"
    assert read_stream(pieces_of(data, cuts)) == (whole, whole)


@given(st.text(st.sampled_from("aé😀\n\r"), max_size=40), cuts)
@example("x\r\r\n", [2])
def test_the_states_of_a_progress_bar_are_logged_the_same_in_any_pieces(text, cuts):
    log, _ = read_stream(pieces_of(text.encode(), cuts))
    states = [line.strip("\r") for line in log.decode().split("\n")]
    assert [state for state in states if state] == [state for state in re.split("[\r\n]", text) if state]


@given(st.integers(0, 5), st.sampled_from("aé€😀"), st.integers(LINE_BYTES // 20, LINE_BYTES))
def test_a_long_line_is_cut_between_characters(offset, character, size):
    text = "x" * offset + character * (3 * LINE_BYTES // len(character.encode()))
    data = text.encode()
    log, screen = read_stream([data[at : at + size] for at in range(0, len(data), size)])
    assert log == screen
    assert log.decode().replace("\n", "") == text
    assert max(map(len, log.split(b"\n"))) <= LINE_BYTES + size


def test_a_line_without_end_is_not_hoarded():
    lines = LineStream()
    assert lines.feed(b"x" * LINE_BYTES) == ([], b"")
    block = b"x" * (LINE_BYTES + 1) + b"\n"
    assert lines.feed(b"x") == ([(False, block)], block)
    assert lines.finish() == ([], b"")
    assert lines.feed(b"\r" * LINE_BYTES * 3)[0]


@pytest.mark.parametrize("broken", [b"\x80" * 9, b"\xe2\x82"])
def test_what_is_no_utf8_is_cut_as_well(broken):
    log, _ = read_stream([b"x" * LINE_BYTES + broken, b"y" * 9])
    assert log.replace(b"\n", b"") == b"x" * LINE_BYTES + broken + b"y" * 9


@pytest.mark.parametrize(
    "pieces", [[b"a\r\nb\r\n\r\nc"], [b"a\r", b"\nb\r", b"\n\r", b"\nc\r"], [b"a", b"\r", b"\n", b"b\r\n\r\nc\r"]]
)
def test_windows_newlines_are_newlines(pieces):
    log, screen = read_stream(pieces)
    assert (log.rstrip(b"\r\n"), screen) == (b"a\r\nb\r\n\r\nc", b"a\nb\n\nc\n")


def test_a_progress_bar_is_shown_once_a_second_and_logged_whole():
    steps = [b"\r%d%%" % percent for percent in range(0, 100, 10)]
    log, screen = read_stream([*steps, b"\r100%\n", b"done\n"], seconds_apart=0.25)
    bar = b"".join(b"%d%%\r\n" % percent for percent in range(0, 100, 10))
    assert log == b"\r" + bar + b"100%\ndone\n"
    assert screen == b"0%\n40%\n80%\n100%\ndone\n"


def test_of_many_ranks_the_lowest_one_that_has_a_progress_bar_shows_it():
    now = 0.0
    bars = BarTurn(lambda rank: rank != 0, lambda: now)  # with --ranks 1-3

    def show(*ranks):
        return [rank for rank in ranks if bars.take(rank)]

    assert show(3, 2, 0, 1, 2, 3, 1) == [3, 2, 1]
    now = 1.0
    assert show(0, 3, 1, 2) == [1]
    now = 5.9
    assert show(2, 3) == []
    now = 6.0
    assert show(2, 3, 1) == [2, 1]


def test_losses_of_all_ranks_stay_beside_the_bar_of_one():
    shown = []
    bars = BarTurn()
    output = NodeOutput("gpu1", None, lambda host, rank, stream, lines, at: shown.append((rank, lines)), bars=bars)
    for rank in (0, 1):
        output.feed(rank, STDERR, b"\r10%\r20%")
        output.feed(rank, STDOUT, b"loss 1.5\n")
    assert shown == [(0, b"10%\n"), (0, b"loss 1.5\n"), (1, b"loss 1.5\n")]


def test_the_ends_of_bars_are_shown_as_the_bars_are():
    """A message that a rank writes after it has cleared its bar is none."""
    shown = {0: b"", 1: b""}
    bars = BarTurn()
    streams = {rank: LineStream(bars, rank) for rank in shown}
    pieces = [b"\r10%", b"\r90%\r", b"100%", b"\n", b"\r1\r2", b"\r  \r", b"oops\n", b"\r1\r2\r3\nnext\r\n"]
    for piece in pieces:
        for rank, stream in streams.items():
            shown[rank] += stream.feed(piece)[1]
    assert shown == {0: b"10%\n100%\noops\n3\nnext\n", 1: b"oops\nnext\n"}
    for rest, ends in ((b"\r7\r8", (b"8\n", b"")), (b"\r7\r  \r", (b"", b""))):
        for stream in streams.values():
            stream.feed(rest)
        assert tuple(stream.finish()[1] for stream in streams.values()) == ends


def test_the_tail_is_the_last_of_all_bytes():
    lines = LineStream()
    lines.feed(b"a\r" * TAIL_BYTES)
    lines.feed(b"the\nend")
    assert (len(lines.tail), lines.tail[-9:]) == (TAIL_BYTES, b"a\rthe\nend")


FRAME = b'  File "/data/model.py", line 7, in forward\n    return self.layer(x)\n'
OTHER_FRAMES = FRAME.replace(b"model", b"other") * 200
HEADER, ERROR = b"Traceback (most recent call last):\n", b"RuntimeError: Error(s) in loading state_dict for Net:\n"
LONG_MESSAGE = b"\tMissing key(s) in state_dict: " + b'"key", ' * 9000 + b"\n"


@pytest.mark.parametrize("step", [1 << 20, 4096, 7])
@pytest.mark.parametrize(
    ("printed", "gaps"),
    [
        (HEADER + FRAME + ERROR + LONG_MESSAGE, 1),
        (HEADER + FRAME + ERROR + b"bye\n" * 20_000, 1),
        (HEADER + b"KeyError: 1\n" + b"bye\n" * 9000 + HEADER + FRAME + ERROR + b"x\n" * 30_000, 1),
        (HEADER + FRAME + OTHER_FRAMES + ERROR + b"bye\n" * 20_000, 1),
        (b"a\r90%" + HEADER + FRAME + OTHER_FRAMES * 5 + ERROR, 1),
        (HEADER + FRAME + ERROR + b"bye\n" * 3800, 0),  # as much as is kept
    ],
)
def test_the_newest_traceback_is_kept_beside_the_tail(printed, gaps, step):
    lines = LineStream()
    for place in range(0, len(printed), step):
        lines.feed(printed[place : place + step])
    before, is_there, rest = lines.tail.partition(HEADER + FRAME)
    assert is_there and ERROR in rest
    assert before in (b"", b"90%")
    assert lines.tail.endswith(printed[-TAIL_BYTES // 2 :])
    assert rest.count(b"    ...") == gaps
    assert gaps or before + HEADER + FRAME + rest == printed
    assert len(lines.tail) < 4 * TAIL_BYTES


def test_a_traceback_that_was_survived_is_forgotten():
    lines = LineStream()
    lines.feed(HEADER + FRAME + ERROR)
    lines.heard_at = 100.0
    lines.feed(b"step\n" * TAIL_BYTES)
    assert HEADER not in lines.tail


# displays


@pytest.mark.parametrize(
    ("host", "rank", "with_color", "shown"),
    [
        ("gpu2", 11, False, b"[gpu2:11] a\n[gpu2:11] \n[gpu2:11] b\n"),
        ("gpu1", None, False, b"[gpu1] a\n[gpu1] \n[gpu1] b\n"),
        ("gpu2", 0, True, b"\x1b[33m[gpu2:0]\x1b[0m a\n\x1b[33m[gpu2:0]\x1b[0m \n\x1b[33m[gpu2:0]\x1b[0m b\n"),
    ],
)
def test_every_line_carries_host_and_rank(host, rank, with_color, shown):
    streams = OutputStreams(frozenset([STDOUT] if with_color else []), is_one_file=False, with_color=with_color)
    assert PrefixDisplay(("gpu1", "gpu2"), streams).render(host, rank, STDOUT, b"a\n\nb\n") == shown


def test_lines_as_json():
    block = json_lines(iso_time(AT), "gpu1", None, STDERR, b'a "b"\n')
    block += json_lines(iso_time(AT), "gpu2", 8, STDOUT, "\x1b[1m\u2028é\x9b\x7f\n".encode() + b"\xff\n")
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", block.decode()) is None  # whoever reads it on a terminal
    common = {"event": "line", "time": iso_time(AT)}
    assert [json.loads(line) for line in block.decode().split("\n")[:-1]] == [
        {**common, "host": "gpu1", "rank": None, "stream": "stderr", "text": 'a "b"'},
        {**common, "host": "gpu2", "rank": 8, "stream": "stdout", "text": "\x1b[1m\u2028é\x9b\x7f"},
        {**common, "host": "gpu2", "rank": 8, "stream": "stdout", "text": "\ufffd"},
    ]


# a node's log


@pytest.fixture
def heard():
    return []


def open_heard(path, heard):
    return open_log(path, lambda path, error: heard.append((path, error.errno)))


@pytest.mark.linux
def test_a_full_disk_is_told_and_does_not_end_the_run(heard):
    log = open_heard(Path("/dev/full"), heard)
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    assert heard == [(Path("/dev/full"), errno.ENOSPC)] * 2


@pytest.mark.linux
def test_a_disk_that_complains_only_at_the_end(tmp_path, heard):
    """As NFS does, which writes when a file is closed; here its descriptor is gone."""
    path = tmp_path / "node_0.log"
    log = open_heard(path, heard)
    log.write(b"one\n")
    os.close(next(int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path)))
    log.close()
    log.close()
    assert heard == [(path, errno.EBADF)]


def test_a_log_goes_on_once_there_is_room(tmp_path, heard):
    path = tmp_path / "logs" / "node_0.log"
    log = open_heard(path, heard)
    log.write(b"lost\n")
    path.parent.mkdir()
    log.write(b"kept\n")
    log.close()
    assert (heard, path.read_bytes()) == ([(path, errno.ENOENT)], b"kept\n")


def test_a_node_writes_its_log_and_shows_the_same(tmp_path, heard):
    path, shown = tmp_path / "node_1.log", []
    node = NodeOutput("gpu2", open_heard(path, heard), lambda *block: shown.append(block), clock=lambda: AT)
    node.feed(None, STDERR, b"torchrun speaks\n")
    node.first_rank = 8
    assert node.has_lines
    node.feed(3, STDOUT, b"half ")
    node.feed(0, STDOUT, b"other\n")
    node.feed(3, STDERR, b"warn\n")
    node.feed(3, STDOUT, b"a line\nno newline")
    node.finish()
    node.finish()
    log = path.read_bytes()
    assert len(STAMP.findall(log)) == 5
    assert STAMP.sub(b"", log) == (
        b"[gpu2]! torchrun speaks\n[gpu2:8] other\n[gpu2:11]! warn\n[gpu2:11] half a line\n[gpu2:11]~ no newline\n"
    )
    assert shown == [
        ("gpu2", None, STDERR, b"torchrun speaks\n", AT),
        ("gpu2", 8, STDOUT, b"other\n", AT),
        ("gpu2", 11, STDERR, b"warn\n", AT),
        ("gpu2", 11, STDOUT, b"half a line\n", AT),
        ("gpu2", 11, STDOUT, b"no newline\n", AT),
    ]
    assert (node.tail(3, STDOUT), node.tail(7, STDOUT)) == (b"half a line\nno newline", b"")
    assert heard == []


def test_a_command_without_ranks_that_is_shown_to_nobody(tmp_path, heard):
    path = tmp_path / "node_0.log"
    node = NodeOutput("gpu1", open_heard(path, heard), None, has_ranks=False, clock=lambda: AT)
    assert not node.has_lines
    node.feed(0, STDOUT, b"up\n")
    node.finish()
    assert STAMP.sub(b"", path.read_bytes()) == b"[gpu1] up\n"


# the terminal


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):  # closed by the test
            os.close(fd)


def read_to_end(fd):
    data = b""
    while piece := os.read(fd, 1 << 16):
        data += piece
    return data


def test_all_is_written_in_order(pipe):
    terminal = Terminal(is_terminal=False)
    for number in range(500):
        terminal.put(pipe[1], b"%d\n" % number)
        if number % 100 == 0:
            terminal.say(f"word {number}", pipe[1])
    terminal.close()
    os.close(pipe[1])
    expected = "".join(f"{number}\n" + f"word {number}\n" * (number % 100 == 0) for number in range(500))
    assert read_to_end(pipe[0]).decode() == expected


def test_words_that_are_no_unicode_are_said(capfd):
    terminal = Terminal(is_terminal=False)
    terminal.say("logs in caf\udce9", 2)
    terminal.close()
    assert capfd.readouterr().err == "logs in caf?\n"


def test_lines_for_a_terminal_that_stands_still_are_dropped_and_counted(pipe, capfd):
    block = (b"x" * 1023 + b"\n") * 256
    count = QUEUE_BYTES // len(block) + 40
    terminal = Terminal(is_terminal=True)
    for _ in range(count):
        terminal.put(pipe[1], block)  # nobody reads: were it to wait, the test would stand here
    terminal.say("never dropped", pipe[1])
    reader = threading.Thread(target=lambda: shown.append(read_to_end(pipe[0])))
    shown = []
    reader.start()
    terminal.close()
    os.close(pipe[1])
    reader.join()
    # Once or twice: a part may be dropped before the first block is taken.
    said = re.findall(r"launch: (\d+) lines not shown here; the logs have all of them\n", capfd.readouterr().err)
    dropped = sum(map(int, said))
    lines, words = shown[0].split(b"\n")[:-2], shown[0].split(b"\n")[-2]
    assert (len(lines) + dropped, words) == (count * 256, b"never dropped")
    assert dropped >= 39 * 256
    assert set(lines) == {b"x" * 1023}


def test_a_file_or_pipe_is_waited_for_while_it_moves(pipe, capfd):
    block = (b"x" * 1023 + b"\n") * 1024
    terminal = Terminal(is_terminal=False, patience_s=60.0)
    reader = threading.Thread(target=lambda: shown.append(len(read_to_end(pipe[0]))))
    shown = []
    reader.start()
    for _ in range(10):
        terminal.put(pipe[1], block)
    terminal.close()
    os.close(pipe[1])
    reader.join()
    assert (shown, capfd.readouterr().err) == ([10 * len(block)], "")


@pytest.mark.parametrize(
    ("farewell_s", "own_farewell_s", "say"),
    [
        (0.05, NEVER_S, lambda terminal, fd: terminal.put(fd, b"end\n")),
        (NEVER_S, 0.05, lambda terminal, fd: terminal.say("end", fd)),  # words of ours are waited for longer
    ],
)
def test_closing_does_not_wait_for_a_pipe_that_nobody_reads(pipe, monkeypatch, capfd, farewell_s, own_farewell_s, say):
    monkeypatch.setattr("launcher.output.terminal._PATIENCE_S", 0.01)
    monkeypatch.setattr("launcher.output.terminal._FAREWELL_S", farewell_s)
    monkeypatch.setattr("launcher.output.terminal._OWN_FAREWELL_S", own_farewell_s)
    terminal = Terminal(is_terminal=False)
    terminal.put(pipe[1], b"x" * (1 << 20))
    say(terminal, pipe[1])
    terminal.close()
    assert capfd.readouterr().err == f"launch: {(1 << 20) + 4} bytes of output were never read\n"
    os.close(pipe[0])  # lets the writing thread go


def test_closing_does_not_wait_for_stderr_that_nobody_reads(pipe, monkeypatch):
    monkeypatch.setattr("launcher.output.terminal._PATIENCE_S", 0.01)
    monkeypatch.setattr("launcher.output.terminal._OWN_FAREWELL_S", 0.05)
    saved = os.dup(STDERR)
    os.dup2(pipe[1], STDERR)
    try:
        terminal = Terminal(is_terminal=False)
        terminal.say("x" * (1 << 20), STDERR)
        closer = threading.Thread(target=terminal.close, daemon=True)
        closer.start()
        closer.join(DEADLINE_S)
        assert not closer.is_alive()
    finally:
        os.dup2(saved, STDERR)
        os.close(saved)


@pytest.mark.linux
def test_closing_waits_as_long_as_the_reader_moves(pipe, monkeypatch, capfd):
    pages, shown = 36, []
    page = fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)  # what a pipe holds that is as small as can be
    pause_s = slowed(0.05)
    # So long that a busy machine may hold up the reader for a second.
    monkeypatch.setattr("launcher.output.terminal._FAREWELL_S", 30 * pause_s)
    monkeypatch.setattr("launcher.output.terminal._PIECE_BYTES", page)
    terminal = Terminal(is_terminal=False)
    terminal.put(pipe[1], b"x" * (pages * page))

    def read_slowly():
        while piece := os.read(pipe[0], page):
            shown.append(len(piece))
            time.sleep(pause_s)  # so all together takes longer than a reader that stands still is waited for

    reader = threading.Thread(target=read_slowly)
    reader.start()
    terminal.close()
    os.close(pipe[1])
    reader.join()
    assert (sum(shown), capfd.readouterr().err) == (pages * page, "")


def test_what_a_node_said_in_our_words_can_not_steer_the_terminal(capfd):
    console = Console([], find_streams(os.environ))
    for speak in (console.say, console.show):
        speak("launch: a: \x1b[2J\x1b[Hnothing\x07 wrong")
    console.close()
    assert capfd.readouterr() == ("launch: a: nothing wrong\n", "launch: a: nothing wrong\n")


def test_an_error_keeps_its_lines_whole_and_can_not_steer_the_terminal(capsys):
    """However long they are, and whatever a host said."""
    tell(describe_error(UsageError("\x1b[2J" + "w " * 60, "short")))
    assert capsys.readouterr().err == f"launch: {'w ' * 60}\n  fix: short\n"


# our own words

FAILED = "launch: 2 hosts x 2 processes = 4 ranks, run 20261122-190416, logs in logs/20261122-190416/and/on"


@pytest.mark.parametrize(
    ("style", "no_color", "shown"),
    [
        (Style.TEXT, "", b"%s\n"),
        (Style.STRONG, "", b"\x1b[1m%s\x1b[0m\n"),
        (Style.FAILURE, "", b"\x1b[1;31m%s\x1b[0m\n"),
        (Style.FAILURE, "1", b"%s\n"),
    ],
)
def test_a_message_on_a_terminal_has_weight(screen, monkeypatch, style, no_color, shown):
    with screen(STDERR) as read:
        monkeypatch.setenv("NO_COLOR", no_color)
        console = Console([], find_streams(os.environ))
        console.say(FAILED, style)
        console.close()
        assert read() == shown % FAILED.encode()


def test_json_stays_what_it_was(capfd):
    console = Console([], find_streams(os.environ), as_json=True)
    console.emit("result", text="\x1b[2J\x9b é")
    console.close()
    event = json.loads(capfd.readouterr().out)
    assert event == {"event": "result", "time": event["time"], "text": "\x1b[2J\x9b é"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", event["time"])


@pytest.fixture
def screen(monkeypatch):
    """Make stderr, stdout or both a terminal's for a while; return what shows up there."""
    ends = pty.openpty()
    tty.setraw(ends[1])  # newlines stay what they are

    @contextlib.contextmanager
    def on(*fds):
        saved = {fd: os.dup(fd) for fd in fds}
        for fd in fds:
            os.dup2(ends[1], fd)
        monkeypatch.setenv("NO_COLOR", "1")
        try:
            yield lambda: os.read(ends[0], 1 << 16)
        finally:
            for fd, old in saved.items():
                os.dup2(old, fd)
                os.close(old)

    yield on
    for fd in ends:
        os.close(fd)


STEERING, STEERED = b"\x1b[31mred\x1b[0m \x1b[2J\x07\xc2\x9b2Jtext\n", b"\x1b[31mred\x1b[0m text\n"


@pytest.mark.parametrize(
    ("terminal", "stream", "on_screen", "elsewhere"),
    [
        (STDERR, STDERR, b"[gpu1:0] " + STEERED, b""),
        (STDERR, STDOUT, b"", b"[gpu1:0] " + STEERING),  # a file gets what the rank wrote
        (STDOUT, STDOUT, b"[gpu1:0] " + STEERED, b""),
    ],
)
def test_each_stream_is_a_terminal_or_not_by_itself(screen, capfd, terminal, stream, on_screen, elsewhere):
    with screen(terminal) as read:
        console = Console([Host("gpu1")], find_streams(os.environ))
        console.outputs([Host("gpu1")], None)[0].feed(0, stream, STEERING)
        console.close()
        assert (read() if on_screen else b"") == on_screen
    captured = capfd.readouterr()
    assert (captured.out + captured.err).encode() == elsewhere


def test_hosts_that_printed_the_same_are_folded_unless_they_printed_too_much(monkeypatch):
    monkeypatch.setattr("launcher.output.console.MOST_FOLDED_BYTES", 5 * 20)
    folds, much = Folds("abcde"), [b"123456789\n"] * 3
    for host, lines in {"d": [b"1\n2\n"], "b": [b"other\n"], "a": [b"1\n", b"2\n"], "c": much, "e": much}.items():
        for block in lines:
            folds.add(host, block)
    cut = b"".join(much[:2])
    assert folds.group() == [(["a", "d"], b"1\n2\n"), (["b"], b"other\n"), (["c"], cut), (["e"], cut)]
    folds.add("b", b"other\n" * 9)
    folds.add("b", b"end\n")
    assert (folds.cut, folds.group()[1]) == (["c", "e", "b"], (["b"], b"other\n" * 3))


def test_a_console_without_streams_shows_nothing(capfd):
    console = Console([Host("gpu1")], None)
    console.outputs([Host("gpu1")], None)[0].feed(0, STDOUT, b"step 1\n")
    for speak in (console.say, console.show, console.emit, console.progress):
        speak("word")
    console.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_output_that_was_folded_does_not_steer_a_terminal(screen, capfd, is_terminal):
    with screen(*([STDOUT] if is_terminal else [])) as read:
        console = Console([Host("gpu1")], find_streams(os.environ), is_folding=True)
        console.outputs([Host("gpu1")], None)[0].feed(0, STDOUT, STEERING)
        console.show_folded()
        console.close()
        shown = read() if is_terminal else capfd.readouterr().out.encode()
    assert shown == b"---- gpu1 ----\n" + (STEERED if is_terminal else STEERING)


def test_a_pager_that_was_quit_ends_nothing(pipe, capfd):
    saved = os.dup(STDOUT)
    os.close(pipe[0])
    try:
        os.dup2(pipe[1], STDOUT)
        terminal = Terminal(is_terminal=False)
        for _ in range(3):
            terminal.put(STDOUT, b"line\n")
        terminal.put(STDERR, b"still heard\n")
        terminal.close()
    finally:
        os.dup2(saved, STDOUT)
        os.close(saved)
    assert capfd.readouterr().err == (
        "launch: can't write to stdout any more (Broken pipe); the run continues\nstill heard\n"
    )


def test_a_non_blocking_pipe_gets_everything(pipe):
    os.set_blocking(pipe[1], False)
    terminal = Terminal(is_terminal=False)
    shown = []
    terminal.put(pipe[1], b"x" * (1 << 20))
    terminal.put(pipe[1], b"end\n")
    reader = threading.Thread(target=lambda: shown.append(len(read_to_end(pipe[0]))))
    closer = threading.Thread(target=terminal.close)
    closer.start()
    closer.join(0.05)  # until the pipe is full
    reader.start()
    closer.join()
    os.close(pipe[1])
    reader.join()
    assert shown == [(1 << 20) + 4]
