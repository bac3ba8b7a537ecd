"""Hosts that can't be used, folded by reason."""

from __future__ import annotations

from dataclasses import replace

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.unreachable import failure_lines, fold_failures
from launcher.transports.ssh.failures import Destination


def place(name: str, address: str) -> Destination:
    return Destination(name, address, 22, "me")


def test_what_differs_in_the_addresses_alone_is_one_reason() -> None:
    off = [place(f"gpu{n}", f"10.0.0.{n}").timed_out() for n in (1, 2, 10)]
    refused = [place(name, name).login_refused(["~/.ssh/id"]) for name in ("e1", "e10", "port")]
    alone = HostFailure("e1", HostFailureKind.SHELL, "its login shell ended (exit code 3): port e1 is closed", "why?")
    assert list(fold_failures([*off, alone, *refused])) == [
        (
            ["gpu1", "gpu2", "gpu10"],
            "10.0.0.[1-2,10] port 22 does not answer",
            "check that it is on and that no firewall blocks SSH",
        ),
        (["e1"], "its login shell ended (exit code 3): port e1 is closed", "why?"),
        (
            ["e1", "e10", "port"],
            "login refused for user me (tried ~/.ssh/id)",
            "copy a key there: ssh-copy-id me@e1 (and likewise for 2 more)",
        ),
    ]


def test_what_need_not_be_repeated_is_not_counted() -> None:
    unknown = [replace(place(name, name), known_file="/h/known").key_unknown() for name in ("a", "b")]
    ((_, _, fix),) = fold_failures(unknown)
    assert fix == (
        "check it and add it: ssh-keyscan a >> /h/known (and likewise for 1 more); "
        "or trust new keys: StrictHostKeyChecking accept-new in ssh_config"
    )


def test_what_differs_in_more_stays_apart() -> None:
    changed = [place(name, name).key_changed(f"SHA256:{name}x") for name in ("a", "b")]
    ports = [Destination(name, name, port, "me").refused() for name, port in (("a", 22), ("b", 2222))]
    assert [names for names, _, _ in fold_failures([*changed, *ports])] == [["a"], ["b"], ["a"], ["b"]]


def test_a_host_that_fails_twice_is_counted_and_listed_once() -> None:
    lost = place("a", "10.0.0.1").timed_out()
    lines = ["  a: 10.0.0.1 port 22 does not answer", "    fix: check that it is on and that no firewall blocks SSH"]
    assert failure_lines([lost, lost]) == ["launch: 1 host can't be used:", *lines]
    refused = HostFailure("a", HostFailureKind.SHELL, "its login shell ended")
    lines.append("  a: its login shell ended")
    assert failure_lines([lost, lost, refused]) == ["launch: 1 host can't be used:", *lines]


def test_what_a_machine_says_reaches_no_terminal_as_it_is() -> None:
    said = "\x1b[2J\nlaunch: finished"
    failure = HostFailure("a", HostFailureKind.SHELL, said, said)
    assert failure_lines([failure])[1:] == ["  a: ?[2J?launch: finished", "    fix: ?[2J?launch: finished"]
