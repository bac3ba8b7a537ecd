"""Nodes that pass pieces of code on, each to the next, and who else comes to their ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S
from node_code import Code, Talk
from node_process import Nodes

from launcher.node import messages
from launcher.node.code import chain
from launcher.transports.agents.credentials import make_certificate

PEM = "".join(make_certificate()).encode()
NAMES = [f"file{number}" for number in range(6)]


@pytest.fixture
def code() -> Code:
    return Code({name: name.encode() + os.urandom(200_000) for name in NAMES})


@pytest.fixture
def talks(nodes: Nodes, tmp_path: Path, code: Code, old_python: str) -> list[Talk]:
    """Return three nodes that each lack all files, with a cache directory of their own; one has the oldest Python."""
    caches = [{"XDG_CACHE_HOME": str(tmp_path / f"cache{number}")} for number in range(3)]
    pythons = [sys.executable, old_python, sys.executable]
    talks = [Talk(nodes.start(env=cache, python=python), code) for cache, python in zip(caches, pythons, strict=True)]
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


def join(talks: list[Talk], places: list[dict[str, Any]]) -> list[bool]:
    """Let each node connect to the place behind its own."""
    for number, talk in enumerate(talks):
        following = places[number + 1] if number + 1 < len(places) else None
        talk.node.send(messages.JOIN, following=following, has_previous=number > 0)
    return [talk.node.wait_for(messages.JOINED)["is_complete"] for talk in talks]


def test_each_piece_is_sent_once_and_reaches_all(talks: list[Talk], code: Code) -> None:
    assert join(talks, meet(talks)) == [True] * 3
    talks[0].send(*NAMES[:-1], is_for_chain=True)
    for talk in talks:
        talk.send(NAMES[-1])
        talk.node.send(messages.PLACE, is_writer=True, is_in_chain=True)
    for talk in talks:
        answer = talk.node.wait_for(messages.PLACED)
        assert (answer["hash"], answer["wrong"]) == (code.hash, [])
        assert {path.name: path.read_bytes() for path in Path(answer["path"]).iterdir()} == code.files
    assert [len(talk.node.find(messages.TOOK)) for talk in talks] == [len(NAMES), 1, 1]


@pytest.mark.parametrize("killed", range(3))
def test_what_a_killed_node_did_not_pass_on_is_wanted_again(killed: int, talks: list[Talk], code: Code) -> None:
    assert join(talks, meet(talks)) == [True] * 3
    talks[0].send(*NAMES[:3], is_for_chain=True)
    talks[0].node.wait_until(lambda: len(talks[0].node.find(messages.TOOK)) == 3, "three receipts")
    os.kill(talks[killed].node.supervisor, signal.SIGKILL)
    talks[killed].node.wait_until_gone()
    others = [talk for number, talk in enumerate(talks) if number != killed]
    for talk in others:
        talk.node.send(messages.PLACE, is_writer=True, is_in_chain=True)
    for talk in others:
        lacking = code.wanted(talk.request())
        assert {*NAMES[3:]} <= {*lacking}
        talk.send(*lacking)
        answer = talk.place()
        assert (answer["hash"], answer["wrong"]) == (code.hash, [])


def test_a_node_that_can_t_be_reached_is_told(talks: list[Talk], code: Code) -> None:
    places = meet(talks)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        places[2]["port"] = nobody.getsockname()[1]
        assert join(talks[:1], [places[0], places[2]]) == [False]
    talks[0].send(*NAMES)
    assert talks[0].place()["hash"] == code.hash


def test_strangers_get_nothing_and_change_nothing(talks: list[Talk], code: Code, tmp_path: Path) -> None:
    places = meet(talks)
    place = ("127.0.0.1", places[1]["port"])
    silent = socket.create_connection(place)
    babbler = socket.create_connection(place)
    babbler.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    other = tmp_path / "other.pem"
    other.write_text("".join(make_certificate()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(other)
    hello = messages.encode("hello", to=1)
    wrapped = context.wrap_socket(socket.create_connection(place, DEADLINE_S))
    with wrapped as sock, contextlib.suppress(OSError):  # its certificate is not the one
        sock.sendall(hello)
        assert sock.recv(1) == b""
    assert join(talks, places) == [True] * 3
    talks[0].send(*NAMES, is_for_chain=True)
    for talk in talks:
        talk.node.send(messages.PLACE, is_writer=True, is_in_chain=True)
    assert [talk.node.wait_for(messages.PLACED)["hash"] for talk in talks] == [code.hash] * 3
    silent.close()
    babbler.close()


def test_strangers_of_another_address_keep_no_neighbour_out(talks: list[Talk], code: Code) -> None:
    places = meet(talks)
    with contextlib.ExitStack() as strangers:
        for _ in range(3 * chain._MOST_STRANGERS):
            place = ("127.0.0.1", places[1]["port"])
            strangers.enter_context(socket.create_connection(place, source_address=("127.0.0.2", 0)))
        assert join(talks, places) == [True] * 3


BAD_PIECES = {
    "a bomb": messages.encode(messages.PIECE, zlib.compress(bytes(60 << 20)), parts=[[0, 0, 1 << 17]], is_packed=True),
    "no such file": messages.encode(messages.PIECE, b"x", parts=[[len(NAMES), 0, 1]], is_packed=False),
    "no parts": messages.encode(messages.PIECE, b"x"),
    "too much to come": b'{"type":"piece","parts":[[0,0,1]],"is_packed":false,"size":2000000}\n',
}


@pytest.mark.parametrize("bad", BAD_PIECES.values(), ids=BAD_PIECES)
def test_a_hostile_neighbour_is_dropped_and_harms_nobody(
    bad: bytes, talks: list[Talk], code: Code, tmp_path: Path
) -> None:
    """The nodes behind it get from the launcher what it did not pass on, and none of them reports an error."""
    places = meet(talks)
    with connect(places[1]["port"], tmp_path) as sock:
        sock.sendall(messages.encode("hello", to=1))
        assert sock.recv(1) == b"+"
        sock.sendall(messages.encode("begin"))
        assert join(talks, places)[1:] == [True, True]
        sock.sendall(bad)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b"", "it hangs up"
    for talk in talks[1:]:
        talk.node.send(messages.PLACE, is_writer=True, is_in_chain=True)
    for talk in talks[1:]:
        lacking = code.wanted(talk.request())
        assert lacking == NAMES
        talk.send(*lacking)
        assert talk.place()["hash"] == code.hash


def test_a_neighbour_that_drips_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes without a piece: the launcher would name the node that waits."""
    monkeypatch.setattr(chain, "SILENCE_S", 0.2)
    link = chain.ChainLink(0, PEM, lambda header, payload: [], lambda parts: None)
    is_over = threading.Event()
    with connect(link.port, tmp_path) as sock:
        sock.sendall(messages.encode("hello", to=0))
        assert sock.recv(1) == b"+"
        sock.sendall(messages.encode("begin"))
        assert link.join(None, has_previous=True)
        finishing = threading.Thread(target=link.finish, daemon=True)
        finishing.start()
        dripping = threading.Thread(target=drip, args=(sock, is_over))
        dripping.start()
        finishing.join(DEADLINE_S)
        is_over.set()
        dripping.join()
    link.close()
    assert not finishing.is_alive()


def drip(sock: ssl.SSLSocket, is_over: threading.Event) -> None:
    while not is_over.wait(0.01):
        with contextlib.suppress(OSError):
            sock.sendall(b"x")


def connect(port: int, folder: Path) -> ssl.SSLSocket:
    """Connect to a node as its neighbours do."""
    key = folder / "key.pem"
    key.write_bytes(PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(key)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), DEADLINE_S))


def test_a_port_is_closed_when_the_code_is_there(talks: list[Talk], code: Code) -> None:
    places = meet(talks)
    assert join(talks, places) == [True] * 3
    talks[0].send(*NAMES, is_for_chain=True)
    for talk in talks:
        talk.node.send(messages.PLACE, is_writer=True, is_in_chain=True)
    for talk in talks:
        talk.node.wait_for(messages.PLACED)
    for place in places:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", place["port"]), DEADLINE_S)
