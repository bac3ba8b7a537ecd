"""A node's networks, and ports that are tried with real listeners on the other side."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S, NEVER_S, slowed
from machines.ports import free_port
from node_process import WAITS, Message, Node, Nodes, shell

from launcher.job.facts import Route
from launcher.node import messages
from launcher.node.facts import network, responder
from launcher.node.loop import Loop
from launcher.preflight import requirements
from launcher.session.node_state import read_route

HERE = "127.0.0.1"
MANY, FEW = 100, 10


# ---- what is there --------------------------------------------------------------------------------------------------


def ask_kernel(*words: str) -> list[dict[str, Any]]:
    """Return what `ip` reads over netlink, which the node's code does without."""
    try:
        done = subprocess.run(["ip", "-json", *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("`ip` with -json is missing: apt-get install iproute2")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_networks_are_those_of_the_kernel() -> None:
    routes = [route for route in ask_kernel("-4", "route", "show") if "gateway" not in route and "/" in route["dst"]]
    found = [(entry["interface"], entry["network"]) for entry in network.list_networks()]
    assert sorted(found) == sorted((route["dev"], route["dst"]) for route in routes)


def test_addresses_are_those_of_the_kernel() -> None:
    known = {(link["ifname"], entry["local"]) for link in ask_kernel("addr", "show") for entry in link["addr_info"]}
    found = network.list_addresses()
    assert ["lo", HERE] in found
    assert {(interface.partition(":")[0], address) for interface, address in found} == known
    assert [":" in address for _, address in found] == sorted(":" in address for _, address in found)


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
{}\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def write(file: Path, text: str | None) -> None:
    """Write a file; None: a folder in its place, which even root can't read as one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)


@pytest.mark.parametrize(("told", "speed_mbps"), [("100000\n", 100000), ("-1\n", None), (None, None)])
@pytest.mark.skipif(sys.byteorder == "big", reason="the kernel writes these addresses in its own byte order")
def test_a_speed_is_what_the_card_tells(tmp_path: Path, told: str | None, speed_mbps: int | None) -> None:
    write(tmp_path / "proc/net/route", ROUTES.format("eth7"))
    write(tmp_path / "sys/class/net/eth7/speed", told)
    assert network.list_networks(str(tmp_path)) == [
        {"interface": "eth7", "network": "10.0.1.0/24", "speed_mbps": speed_mbps}
    ]


def test_active_ports_of_infiniband_are_listed(tmp_path: Path) -> None:
    base = tmp_path / "sys/class/infiniband"
    write(base / "mlx5_1/ports/1/state", "4: ACTIVE\n")
    write(base / "mlx5_0/ports/1/state", "4: ACTIVE\n")
    write(base / "mlx5_0/ports/2/state", "1: DOWN\n")
    write(base / "mlx5_2/ports/1/state", None)
    write(base / "mlx5_3/node_type", "1: CA\n")
    assert network.list_infiniband(str(tmp_path)) == ["mlx5_0:1", "mlx5_1:1"]


def test_a_machine_without_infiniband_or_routes(tmp_path: Path) -> None:
    assert network.list_infiniband(str(tmp_path)) == network.list_networks(str(tmp_path)) == []


# ---- trying ---------------------------------------------------------------------------------------------------------


@contextmanager
def listening(greeting: bytes | None, address: str = HERE) -> Iterator[int]:
    """Listen, and greet each who comes; None: say nothing and keep the line open."""
    with ExitStack() as ends:
        listener = ends.enter_context(socket.create_server((address, 0)))

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if greeting is None:
                    ends.callback(sock.close)
                else:
                    sock.sendall(greeting)
                    sock.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def open_sockets() -> int:
    with os.scandir("/proc/self/fd") as entries:
        return sum(Path(entry.path).is_socket() for entry in entries)


def test_what_became_of_each_target() -> None:
    before = open_sockets()
    with listening(network.TOKEN) as ours, listening(b"SSH-2.0-OpenSSH\r\n") as others, listening(b"") as mute:
        errors = [network.try_target(HERE, port) for port in (ours, free_port(), others, mute)]
    assert errors == [None, "Connection refused", "another program answers", "another program answers"]
    assert network.try_target("256.1.1.1", 1)
    assert network.try_target("x" * 64, 1)
    assert open_sockets() == before


def test_silent_listeners_and_an_address_that_nobody_has_cost_one_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    timeout_s = slowed(1)
    monkeypatch.setattr(network, "CONNECT_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(responder, "PROBE_TIMEOUT_S", NEVER_S)
    with listening(None) as silent:
        began_at = time.monotonic()
        answer = probe_here(*[(HERE, silent)] * FEW, ("240.0.0.1", 1))
        assert time.monotonic() - began_at < timeout_s * FEW
    assert answer["errors"][:-1] == [f"no answer in {timeout_s:g} s"] * FEW
    assert answer["errors"][-1]  # "Network is unreachable", or silence behind a default route


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.socket, "getnameinfo", hang)
    monkeypatch.setattr(responder, "DNS_TIMEOUT_S", 0.2)
    with listening(network.TOKEN) as port:
        answer = probe_here((HERE, port))
    assert (answer["errors"], answer["reverse_dns_s"]) == ([None], 0.2)


# ---- a node's listeners ---------------------------------------------------------------------------------------------


def ask_route(node: Node, **fields: object) -> Message:
    node.send(messages.ROUTE, **{"master": HERE, "port": 0, "listens": True, **fields})
    return node.wait_for(messages.ROUTED)


def probe(node: Node, *targets: list[object], peer: str = HERE) -> Message:
    node.send(messages.PROBE, targets=targets, peer=peer)
    return node.wait_for(messages.PROBED)


def bind_as_torchrun(port: int, address: str = "", *, reuse: bool = True) -> int:
    """Bind and listen; return the error's number or 0."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen()
        except OSError as error:
            return error.errno or -1
        return 0


def test_nodes_reach_each_other(nodes: Nodes, any_python: str) -> None:
    first, second = nodes.start(python=any_python), nodes.start(python=any_python)
    for node in (first, second):
        node.prepare()
    way, back = ask_route(first), ask_route(second, port=None)
    assert len({way["port"], way["probe_port"], back["probe_port"]}) == 3
    assert "port" not in back
    answer = probe(second, [HERE, way["port"]], [HERE, way["probe_port"]], peer=HERE)
    assert answer["errors"] == [None, None]
    assert answer["reverse_dns_s"] >= 0
    assert probe(first, [HERE, way["port"]], [HERE, back["probe_port"]], [HERE, free_port()])["errors"] == [
        None, None, "Connection refused",
    ]  # fmt: skip


def test_nodes_reach_each_other_over_ipv6(nodes: Nodes) -> None:
    if ["lo", "::1"] not in network.list_addresses():
        pytest.skip("no IPv6 here: sysctl net.ipv6.conf.lo.disable_ipv6=0")
    first, second = nodes.start(), nodes.start()
    for node in (first, second):
        node.prepare()
    way = ask_route(first, master="::1")
    assert (way["interface"], way["address"]) == ("lo", "::1")
    assert probe(second, ["::1", way["port"]], [HERE, way["probe_port"]])["errors"] == [None, None]
    assert bind_as_torchrun(way["port"], "::") == errno.EADDRINUSE
    first.start_ready(shell(WAITS))
    assert bind_as_torchrun(way["port"], "::") == 0


def test_the_master_port_stays_held_and_torchrun_gets_it(nodes: Nodes) -> None:
    """At START the listeners go; the port is held until torchrun listens, and lets it."""
    node = nodes.start()
    node.import_torchrun()
    way = ask_route(node)
    assert probe(node, [HERE, way["port"]])["errors"] == [None]
    assert bind_as_torchrun(way["port"], reuse=False) == errno.EADDRINUSE
    # A torchrun that never listens (it ends at once), so what the node itself holds can be seen.
    node.send(
        messages.START, torchrun_args=["--help"], env={}, cwd=None, local_ranks=[0], processes=[], payload_name="x"
    )
    node.wait_until(lambda: refuses(way["probe_port"]) and refuses(way["port"]), what="closed listeners")
    assert bind_as_torchrun(way["port"], reuse=False) == errno.EADDRINUSE
    assert bind_as_torchrun(way["port"]) == 0


def refuses(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((HERE, port)) == errno.ECONNREFUSED


def test_a_node_without_checks_opens_no_port(node: Node) -> None:
    way = ask_route(node, listens=False)
    assert "probe_port" not in way
    assert refuses(way["port"])


def test_strangers_who_go_or_stay_take_no_descriptors(node: Node) -> None:
    """Such as a port scanner, or a health check that hangs up with a reset."""
    way = ask_route(node)
    for _ in range(20):
        with socket.create_connection((HERE, way["port"])) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert probe(node, [HERE, way["port"]])["errors"] == [None]
    before = descriptors(node)
    with ExitStack() as strangers:
        for _ in range(3 * responder.MAX_ANSWERED):
            sock = strangers.enter_context(socket.create_connection((HERE, way["port"]), timeout=60))
            assert sock.recv(len(network.TOKEN)) == network.TOKEN
        assert probe(node, [HERE, way["port"]])["errors"] == [None]
        assert descriptors(node) <= before + responder.MAX_ANSWERED + 1  # the child that has just tried
    node.start_ready(shell(WAITS))
    assert descriptors(node) < before
    node.wait_until(lambda: refuses(way["port"]), what="closed")


def descriptors(node: Node) -> int:
    """Count the supervisor's sockets."""
    count = 0
    for path in Path(f"/proc/{node.supervisor}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += path.readlink().name.startswith("socket:")
    return count


def test_a_port_that_is_taken(node: Node) -> None:
    with listening(b"") as port:
        way = ask_route(node, port=port)
    assert read_route(way) == Route("lo", HERE, error=requirements.IN_USE)


# ---- what may block, in a child -------------------------------------------------------------------------------------


class Heard:
    """Stands for the send_queue; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append({"type": kind, **fields})


def hang(*_: object, **__: object) -> None:  # a fake: a resolver that does not answer
    signal.pause()


def answer_here(ask: Callable[[responder.Responder], object]) -> Message:
    """Ask a responder in this process; return its answer, for which nothing here may block."""
    heard, loop = Heard(), Loop()
    asked = responder.Responder(loop, heard, None, -1)  # type: ignore[arg-type]
    ask(asked)
    deadline = time.monotonic() + DEADLINE_S
    while not heard.sent:
        assert time.monotonic() < deadline
        loop.run_once()
    asked.stop_listening()
    asked.release_port()
    (answer,) = heard.sent
    return answer


def probe_here(*targets: tuple[str, int]) -> Message:
    return answer_here(lambda asked: asked.probe({"targets": targets, "peer": HERE}))


def test_a_name_that_nobody_looks_up_is_told_and_stalls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.socket, "getaddrinfo", hang)
    monkeypatch.setattr(responder, "LOOK_UP_TIMEOUT_S", 0.5)
    answer = answer_here(lambda asked: asked.find_route({"master": "gpu1", "port": 0, "listens": True}))
    assert answer["error"] == "the name gpu1 did not resolve in 0.5 s"


def test_a_name_is_looked_up(node: Node) -> None:
    way = ask_route(node, master="localhost")
    assert way["interface"] == "lo"
    assert way["port"] and way["probe_port"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(HERE, True), ("::1", True), ("gpu1", False), ("1", False), ("\udcff", False)],
)
def test_what_is_an_address(text: str, is_one: bool) -> None:
    assert network.is_address(text) == is_one
