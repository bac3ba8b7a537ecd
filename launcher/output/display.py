"""How a rank's line looks on the screen: with a prefix such as `[node2:5] ` in a color, or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from launcher.escapes import clean
from launcher.output.lines import STDOUT
from launcher.output.output_streams import OutputStreams

_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_to_json = json.JSONEncoder(ensure_ascii=False).encode
_LEFT_BY_JSON = re.compile("[\x7f-\x9f]")  # controls that json.dumps does not escape


class PrefixDisplay:
    """Shows a line as `[node2:5] line`, with the prefix in a color of its node."""

    def __init__(self, hosts: Sequence[str], streams: OutputStreams) -> None:
        self._streams = streams
        self._colors = {host: _COLORS[index % len(_COLORS)] for index, host in enumerate(hosts)}

    def render(self, host: str, rank: int | None, fd: int, lines: bytes) -> bytes:
        """Return the block to write to a stream of this process; `lines` ends with a newline."""
        prefix = prefix_of(host, rank)
        if self._streams.has_color(fd):
            color = self._colors.setdefault(host, _COLORS[len(self._colors) % len(_COLORS)])  # a spare comes later
            prefix = b"\x1b[%dm%s\x1b[0m" % (color, prefix)
        if fd in self._streams.terminals:
            lines = clean(lines)
        return bytes(prefix_lines(prefix + b" ", lines))


def json_lines(time: str, host: str, rank: int | None, stream: int, lines: bytes) -> bytes:
    """Return one JSON object for each line of a block that ends with a newline."""
    common = {
        "event": "line",
        "time": time,
        "host": host,
        "rank": rank,
        "stream": "stdout" if stream == STDOUT else "stderr",
    }
    head = _to_json(common)[:-1]
    texts = lines.decode("utf-8", "replace").split("\n")[:-1]
    block = "".join(f'{head}, "text": {_to_json(text)}}}\n' for text in texts)
    return _LEFT_BY_JSON.sub(lambda control: f"\\u{ord(control[0]):04x}", block).encode()


def prefix_of(host: str, rank: int | None) -> bytes:
    """Return `[host:rank]`, or `[host]` for output that comes from no rank."""
    return f"[{host}]".encode() if rank is None else f"[{host}:{rank}]".encode()


def prefix_lines(prefix: bytes, lines: bytes) -> memoryview:
    """Put `prefix` in front of every line of a block that ends with a newline.

    It is a view, since each copy of a large block costs as much again: malloc gives so much memory back at once.
    """
    block = (b"\n" + lines).replace(b"\n", b"\n" + prefix)
    return memoryview(block)[1 : len(block) - len(prefix)]
