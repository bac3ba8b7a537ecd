"""NCCL's RAS on a node: an address for each run, and what is asked there. A recorded answer stands in for NCCL."""

from __future__ import annotations

import sys

import pytest
from machines import recorded_ras
from node_process import Node, Nodes, shell

from launcher.node import messages

SHOW = shell('echo "ready <$NCCL_RAS_ADDR>"; exec sleep 300')


def ask(node: Node) -> str:
    node.send(messages.RAS)
    text: str = node.wait_for(messages.RAS_STATUS)["text"]
    return text


@pytest.fixture
def node(nodes: Nodes) -> Node:
    node = nodes.start()
    node.prepare()
    return node


def test_each_run_has_an_address_of_its_own(nodes: Nodes) -> None:
    addresses = set()
    for _ in range(2):
        node = nodes.start()
        node.prepare()
        node.start_ready(SHOW)
        addresses.add(bytes(node.output[0, 1]))
        assert b"<127.0.0.1:" in node.output[0, 1]
    assert len(addresses) == 2


def test_the_address_of_the_user_stays(node: Node) -> None:
    node.start_ready(SHOW, env={"NCCL_RAS_ADDR": "127.0.0.1:4711"})
    assert b"<127.0.0.1:4711>" in node.output[0, 1]


def test_a_command_gets_none(node: Node) -> None:
    node.start_ready(SHOW, is_short=True)
    assert b"ready <>" in node.output[0, 1]


def test_what_ras_says(node: Node) -> None:
    node.start_ready([sys.executable, "-Ic", recorded_ras.STAND_IN, recorded_ras.MISMATCH])
    assert ask(node) == recorded_ras.MISMATCH
    node.wait_for_output("VERBOSE STATUS", stream=2)


@pytest.mark.parametrize("env", [{}, {"NCCL_RAS_ENABLE": "0"}, {"NCCL_RAS_ADDR": "nowhere"}])
def test_where_nobody_listens_the_answer_is_empty(node: Node, env: dict[str, str]) -> None:
    node.start_ready(SHOW, env=env)
    assert ask(node) == ""
