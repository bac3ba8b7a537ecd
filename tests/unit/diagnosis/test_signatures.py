"""The table of known lines: each line that was seen is explained by its own row, and harmless lines by none."""

from __future__ import annotations

import string
import time
from pathlib import Path

import pytest

from launcher.diagnosis.signatures import MAX_LINE, SIGNATURES, Kind, explain_lines

SEEN_LINES = Path(__file__).with_name("seen_lines.txt")
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 6.62 MiB is free. Process 12345 has 79.14 GiB memory in use."
)


def read_seen() -> list[tuple[str, list[str]]]:
    """Return the lines of the file, each with the names above it."""
    seen = []
    names: list[str] = []
    for text in SEEN_LINES.read_text("utf-8").splitlines():
        if text.startswith("    "):
            seen.append((text[4:], names))
        elif not text.startswith("#"):
            names = [] if text == "-" else text.split()
    return seen


SEEN = read_seen()


def names_of(line: str) -> list[str]:
    return [known.name for known in explain_lines([line])]


def test_a_line_that_was_seen_is_explained_by_its_own_signature_first() -> None:
    assert [(line, names_of(line)) for line, _ in SEEN] == SEEN


def test_every_signature_was_seen() -> None:
    assert {names[0] for _, names in SEEN if names} == {signature.name for signature in SIGNATURES}
    assert len({signature.name for signature in SIGNATURES}) == len(SIGNATURES)
    assert sum(not names for _, names in SEEN) > 25


def test_a_signature_is_plain() -> None:
    """Its words use groups that its pattern has, are one line, and say nothing twice."""
    for signature in SIGNATURES:
        for text in (signature.cause, signature.fix):
            assert {field for _, field, _, _ in string.Formatter().parse(text) if field} <= set(signature.groups), text
            assert 8 < len(text) < 130, text
            assert text == text.strip(" .\n") and "\n" not in text, text
        assert signature.says or not set(signature.pattern) & set(r"\|()[]?*+^$.{}"), signature.name


@pytest.mark.parametrize(
    ("line", "cause", "fix"),
    [
        (
            OOM,
            "the GPU's memory is full, and process 12345 holds 79.14 GiB of it",
            "use a smaller batch; if 12345 isn't part of this run, launch check names its owner, "
            "and launch clean stops your leftovers",
        ),
        (
            "The client socket has timed out after 60s while trying to connect to (10.0.0.1, 2222).",
            "this rank could not reach rank 0 at 10.0.0.1 port 2222: "
            "rank 0 isn't running, or a firewall blocks the port",
            "check that rank 0 started; open the port; set addr= in the hostfile to the address that the hosts use",
        ),
        (
            "NCCL WARN Duplicate GPU detected : rank 6 and rank 4 both on CUDA device 31000",
            "two ranks use the same GPU: no set_device in the script, or one machine listed as two hosts",
            "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); launch hosts shows the hosts",
        ),
        (
            "Unable to find address for: {eth0}",
            "this host has no interface {eth0}; gloo needs one exact name, and names differ between hosts",
            "don't set GLOO_SOCKET_IFNAME: each host then uses the interface that leads to node 0",
        ),
    ],
)
def test_what_the_line_names_stands_in_the_words(line: str, cause: str, fix: str) -> None:
    found = next(explain_lines([line]))
    assert (found.cause, found.fix) == (cause, fix)


@pytest.mark.parametrize("address", ["10.0.0.1:29500", "[fe80::1]:29500", "(::2, 29500)", "(gpu1, 29500)."])
def test_addresses_in_all_their_forms(address: str) -> None:
    host = address.strip("().").rpartition(":" if ", " not in address else ",")[0].strip("[]")
    found = list(explain_lines([f"while trying to connect to {address}"]))
    assert [known.name for known in found] == ["master-unreachable"]
    assert f"at {host} port 29500:" in found[0].cause


def test_the_special_goes_before_the_general_whatever_the_order_of_lines() -> None:
    lines = [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, invalid usage (run with x)",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    ]
    assert next(explain_lines(lines)).name == next(explain_lines(reversed(lines))).name == "duplicate-gpu"


def test_what_healthy_ranks_say_is_marked() -> None:
    marked = {signature.name for signature in SIGNATURES if signature.kind is Kind.CONSEQUENCE}
    assert {"watchdog", "peer-gone", "rank-0-gone", "nccl-peer"} <= marked
    assert not marked & {"gpu-memory", "port-taken", "module-missing"}


@pytest.mark.parametrize(
    "piece",
    ["a", " ", "sh: 1: ", "[Rank 1] ", "lib", "port: 1", "DataLoader worker (pid", "/dev/shm/x"],
)
def test_a_flood_in_one_line_costs_little(piece: str) -> None:
    line = piece * (1_000_000 // len(piece))
    next(explain_lines([""]), None)  # compiles the patterns
    began = time.process_time()
    list(explain_lines([line]))
    assert time.process_time() - began < 1  # of CPU; it takes 2 ms


def test_the_end_of_a_very_long_line_is_not_searched() -> None:
    line = "x" * MAX_LINE
    assert names_of("MemoryError " + line) == ["host-memory"]
    assert names_of(line + " MemoryError") == []
