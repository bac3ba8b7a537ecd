"""Start the agent of a host over any transport: the launch host and the controller do, at the start of a run and later.

An agent gets its order from stdin: where its controller listens, by which certificate it knows it, and its own token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.controller.orders import Control
from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.node import messages
from launcher.output.lines import STDERR
from launcher.transports import bootstrap
from launcher.transports.archives import pack_node
from launcher.transports.base import Channel, Transport, TransportError
from launcher.transports.bootstrap import LoadedPython, describe_no_input, hanging_up, open_python

REDIAL_S = 600.0  # an agent tries for so long to reach its controller again, if the run may be restarted
_ANSWER_S = 10.0  # for an agent's answer, once its time to connect is over
_ERROR_BYTES = 4096

_MOST_ADDRESSES = 256  # an agent dials all of them at once
Order = Mapping[str, Any]  # what messages.PLANT has


def make_order(
    request: Control, run_id: str, index: int, host: Host, controller: Host, addresses: Sequence[str], port: int
) -> Order:
    """Return what the agent of a host is told at the start of a run; addresses: all of the controller's host."""
    is_same = _login(host) == _login(controller)
    found = [controller.address] if controller.address else []
    found += [each for each in addresses if is_same or not _is_local(each)]
    timeouts = request.job.timeouts
    return {
        "run": run_id, "index": index, "token": request.credentials.tokens[index],
        "addresses": [[address, port] for address in dict.fromkeys(found)][:_MOST_ADDRESSES],
        "fingerprint": request.credentials.fingerprint, "silence_s": timeouts.silence_s,
        "redial_s": REDIAL_S if request.options.restarts else 0.0, "connect_timeout_s": timeouts.connect_timeout_s,
        "is_after_go": False,
    }  # fmt: skip


def _login(host: Host) -> tuple[object, ...]:
    return host.name, host.user, host.port, host.enter


def open_agent(transport: Transport, host: Host, pythons: Sequence[str], timeout_s: float) -> LoadedPython:
    """Log in and send the agent's code; it waits for its order. Raise TransportError."""
    python = open_python(transport, host, pythons, timeout_s, pack_node())
    python.start(bootstrap.AGENT)
    return python


def give_order(channel: Channel, order: Order) -> None:
    """Let an agent dial."""
    with contextlib.suppress(OSError):  # reading tells why it has ended
        channel.write(messages.encode(messages.PLANT, **order))


def await_answer(channel: Channel, host: Host, controller: str) -> str:
    """Return DIALLED, or PRESENT; raise TransportError if the agent has ended, or can't reach its controller."""
    decoder, errors = messages.Decoder(), b""
    while True:
        stream, data = channel.read()
        if not stream:
            break
        if stream == STDERR:
            errors = (errors + data)[-_ERROR_BYTES:]
            continue
        for header, _ in decoder.feed(data):
            if header["type"] == messages.REFUSED:
                text = f"it can't reach {controller}: {header['why']}"
                fix = f"let the hosts connect to {controller}, or use --controller here"
                raise TransportError(HostFailure(host.name, HostFailureKind.NO_ROUTE, text, fix))
            if header["type"] in (messages.DIALLED, messages.PRESENT):
                return str(header["type"])
    if channel.exit_code() is None:
        raise TransportError(HostFailure(host.name, HostFailureKind.CONNECTION, "the connection was lost"))
    if channel.exit_code() == 0 and host.enter:
        raise TransportError(describe_no_input(host.enter, host.name))
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    text = f"its agent has ended{f': {lines[-1]}' if lines else ''}"
    raise TransportError(HostFailure(host.name, HostFailureKind.SUPERVISOR, text))


def start_again(transport: Transport, host: Host, pythons: Sequence[str], order: Order, controller: str) -> None:
    """Start the agent of a host that was missing, and return once it has reached the controller.

    Raise TransportError if that isn't so.
    """
    timeout_s = order["connect_timeout_s"]
    python = open_agent(transport, host, pythons, timeout_s)
    with hanging_up(python.channel, timeout_s + _ANSWER_S):
        try:
            give_order(python.channel, {**order, "is_after_go": True})
            answer = await_answer(python.channel, host, controller)
        finally:
            python.channel.close()
    if answer == messages.PRESENT:
        port = order["addresses"][0][1] if order["addresses"] else 0
        text = f"its agent runs, but has not reached {controller} yet"
        fix = f"let it connect to {controller}, port {port}"
        raise TransportError(HostFailure(host.name, HostFailureKind.NO_ROUTE, text, fix))


def _is_local(address: str) -> bool:
    """Tell whether only the machine that has this address can use it."""
    return address.startswith(("127.", "fe80:")) or address == "::1"
