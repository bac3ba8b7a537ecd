"""Which answers with stacks are kept."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace as Fake

from launcher.node import messages
from launcher.output.lines import STDOUT
from launcher.output.node_output import NodeOutput
from launcher.runs import hangs
from launcher.runs.hangs import StackTaker
from launcher.session.connection import Event
from launcher.session.node_state import NodeState


def make_taker(said):
    """Return what takes the stacks of two nodes with one rank each, and its plan."""
    session = Fake(
        states=[NodeState("node1", started={0}), NodeState("node2", started={0})],
        say=said.append,
        send_to_all=lambda *_, **__: None,
        subscribe=lambda *_: nullcontext(),
    )
    record = Fake(
        run_id="r",
        name=None,
        name_stacks=lambda number: f"stacks-{number}.txt",
        show=lambda path: path,
        folder=Path("logs"),
        keep_text=lambda name, text: None,
        disk=Fake(put=lambda work: work()),
    )
    nodes = [Fake(host=Fake(name=f"node{rank + 1}"), first_rank=rank, cwd="/") for rank in (0, 1)]
    return StackTaker(session, record, Fake(emit=lambda *_, **__: None)), Fake(nodes=nodes)


def answer(index, local_rank, content=b"", number=1):
    fields = {"number": number, "local_rank": local_rank, "pid": 1, "source": None, "state": None, "wchan": None}
    return Event(index, messages.STACK, {**fields, "reason": "no stack", "content": content}, 0.0)


def test_answers_that_nobody_asked_for_are_not_kept():
    """A broken node may send a megabyte for each of 4096 ranks that it does not have, as often as it likes."""
    said = []

    async def run():
        taker, plan = make_taker(said)
        with taker.allowed(plan):
            result = taker.take()
            tracemalloc.start()
            for local_rank in range(1, 100):
                taker._take_answer(answer(0, local_rank, bytes(100_000)))
            kept_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert kept_bytes < 1_000_000
            taker._take_answer(answer(0, 0))
            taker._take_answer(answer(1, 0, number=0))
            assert not result.done()
            taker._take_answer(answer(1, 0, content=b"x" * 1000))
            assert len((await result).groups) == 1
        assert taker._answers == {}

    asyncio.run(run())
    assert said == [
        "launch: taking the stacks of 2 ranks",
        "launch: stacks of 2 ranks on 2 hosts",
        "  2 ranks on node[1-2] (0-1):",
        "    no stack: no stack",
        "launch: full text in logs/stacks-1.txt",
    ]


def test_nodes_that_do_not_answer_in_time_are_told(monkeypatch):
    monkeypatch.setattr(hangs, "ANSWER_S", 0.05)
    said = []

    async def run():
        taker, plan = make_taker(said)
        with taker.allowed(plan):
            result = taker.take()
            taker._take_answer(answer(1, 0))
            await result

    asyncio.run(run())
    assert "    no response from its host" in said


def test_what_counts_as_a_sign_of_life():
    """Half a line does, as of a progress bar; torchrun's lines don't. Gaps mean something from the third line on."""
    output = NodeOutput("node1", None, None)
    output.feed(None, STDOUT, b"torchrun says\n" * 9)
    assert (output.heard_at, output.has_rhythm) == (0.0, False)
    output.feed(0, STDOUT, b"\r 1 of 100")
    heard_at = output.heard_at
    output.feed(0, STDOUT, b"\r 2 of 100")
    assert output.heard_at > heard_at > 0.0 and output.longest_gap_s > 0.0
    rhythms = []
    for rank in (1, 2, 1, 1):
        output.feed(rank, STDOUT, b"line\n")
        rhythms.append(output.has_rhythm)
    assert rhythms == [False, False, False, True], "of one rank"
