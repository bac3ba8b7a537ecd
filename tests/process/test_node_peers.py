"""Nodes that pass pieces of code on to each other, and who else comes to their ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S
from node_code import Code, Talk
from node_process import Nodes

from launcher.node import messages
from launcher.transports.agents.credentials import make_certificate

PEM = "".join(make_certificate()).encode()
NAMES = [f"file{number}" for number in range(6)]


@pytest.fixture
def code() -> Code:
    return Code({name: name.encode() + os.urandom(200_000) for name in NAMES})


@pytest.fixture
def talks(nodes: Nodes, tmp_path: Path, code: Code, any_python: str) -> list[Talk]:
    """Return three nodes that each lack all files, with a cache directory of their own."""
    caches = [{"XDG_CACHE_HOME": str(tmp_path / f"cache{number}")} for number in range(3)]
    talks = [Talk(nodes.start(env=cache, python=any_python), code) for cache in caches]
    for talk in talks:
        assert talk.ask() == NAMES
    return talks


def meet(talks: list[Talk]) -> list[dict[str, Any]]:
    """Open the ports of all nodes; return them."""
    for number, talk in enumerate(talks):
        talk.node.send(messages.MEET, PEM, number=number)
    ports = [talk.node.wait_for(messages.MET)["port"] for talk in talks]
    assert all(ports)
    return [{"number": number, "addresses": ["127.0.0.1"], "port": port} for number, port in enumerate(ports)]


def join(talks: list[Talk], peers: list[dict[str, Any]]) -> list[bool]:
    for number, talk in enumerate(talks):
        talk.node.send(messages.JOIN, peers=[peer for peer in peers if peer["number"] != number])
    return [talk.node.wait_for(messages.JOINED)["is_complete"] for talk in talks]


def test_each_piece_is_sent_once_and_reaches_all(talks: list[Talk], code: Code) -> None:
    assert join(talks, meet(talks)) == [True] * 3
    for number, name in enumerate(NAMES):
        talks[number % 3].send(name, is_for_all=True)
    for talk in talks:
        talk.node.send(messages.PLACE, is_writer=True, has_peers=True)
    for talk in talks:
        answer = talk.node.wait_for(messages.PLACED)
        assert (answer["hash"], answer["wrong"]) == (code.hash, [])
        assert {path.name: path.read_bytes() for path in Path(answer["path"]).iterdir()} == code.files
        assert len(talk.node.find(messages.TOOK)) == 2


def test_what_a_killed_node_did_not_pass_on_is_wanted_again(talks: list[Talk], code: Code) -> None:
    assert join(talks, meet(talks)) == [True] * 3
    for number, name in enumerate(NAMES[:3]):
        talks[number].send(name, is_for_all=True)
    for talk in talks:
        talk.node.wait_for(messages.TOOK)
    os.kill(talks[0].node.supervisor, signal.SIGKILL)
    talks[0].node.wait_until_gone()
    for talk in talks[1:]:
        talk.node.send(messages.PLACE, is_writer=True, has_peers=True)
    for talk in talks[1:]:
        lacking = code.wanted(talk.request())
        assert {*NAMES[3:]} <= {*lacking}
        talk.send(*lacking)
        answer = talk.place()
        assert (answer["hash"], answer["wrong"]) == (code.hash, [])


def test_a_node_that_can_t_be_reached_is_told(talks: list[Talk], code: Code) -> None:
    peers = meet(talks)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        peers[2]["port"] = nobody.getsockname()[1]
        assert join(talks[:2], [peers[0], peers[2]]) == [False, False]
    talks[0].send(*NAMES)
    assert talks[0].place()["hash"] == code.hash


def test_strangers_get_nothing_and_change_nothing(talks: list[Talk], code: Code, tmp_path: Path) -> None:
    peers = meet(talks)
    place = ("127.0.0.1", peers[0]["port"])
    silent = socket.create_connection(place)
    babbler = socket.create_connection(place)
    babbler.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    other = tmp_path / "other.pem"
    other.write_text("".join(make_certificate()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(other)
    hello = messages.encode("hello", number=1, to=0)
    wrapped = context.wrap_socket(socket.create_connection(place, DEADLINE_S))
    with wrapped as sock, contextlib.suppress(OSError):  # its certificate is not the one
        sock.sendall(hello)
        assert sock.recv(1) == b""
    assert join(talks, peers) == [True] * 3
    talks[0].send(*NAMES, is_for_all=True)
    for talk in talks:
        talk.node.send(messages.PLACE, is_writer=True, has_peers=True)
    assert [talk.node.wait_for(messages.PLACED)["hash"] for talk in talks] == [code.hash] * 3
    silent.close()
    babbler.close()


def test_a_port_is_closed_when_the_code_is_there(talks: list[Talk], code: Code) -> None:
    peers = meet(talks)
    assert join(talks, peers) == [True] * 3
    talks[1].send(*NAMES, is_for_all=True)
    for talk in talks:
        talk.node.send(messages.PLACE, is_writer=True, has_peers=True)
    for talk in talks:
        talk.node.wait_for(messages.PLACED)
    for peer in peers:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", peer["port"]), DEADLINE_S)
