"""Names of hosts and users that would be an option or a command, or would steer a terminal, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.main import main
from launcher.errors import UsageError
from launcher.hosts.host import Host, select_hosts
from launcher.hosts.hostfiles import parse_hostfile, parse_hosts
from launcher.job.slurm_allocation import read_allocation

SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9a-fA-F:.]+(%[A-Za-z0-9_.-]+)?", re.ASCII)
NASTY = [
    "-oProxyCommand=touch${IFS}x", "-l", "--", "-", ".", "..", "a\nb", "a\n-oX", "a\rb", "a\tb", "a\x00b", "a\x0bb",
    "a\x1b[2J", "a\x07", "a\x7f", "a\x9b2J", "a\x85b", "a\u2028b", "a\u202eb", "a\u200bb", "$(id)", "`id`", "a'b",
    'a"b', "a;b", "a|b", "a&b", "a>b", "a<b", "a\\b", "a*", "a?", "~a", "{a,b}", "a%h", "a b", "", " ", "@group", "a@b",
    "a@b@c", "a!b", "a^b", "a/b", "../a", "a=b", "a#b", "fe80::1%$(id)", "fe80::1%a\nb", "node\u00b2", "n\u00f6de",
]  # fmt: skip
PIECES = [*NASTY, "a", "-", "1", ",", "[", "]", "[1-2]", ":", "=", " ", "\n", "//"]
OFFER = parse_hosts("a,b,c")

READERS: dict[str, Callable[[str], Sequence[Host]]] = {
    "--hosts": parse_hosts,
    "--hosts with a user": lambda text: parse_hosts(f"{text}@a"),
    "a list of names": lambda text: parse_hostfile(f"a0\n{text}\n", "f"),
    "our own": lambda text: parse_hostfile(f"{text} slots=2 user=ann port=22\n", "f"),
    "a user": lambda text: parse_hostfile(f"a0 user={text}\n", "f"),
    "a port": lambda text: parse_hostfile(f"a0 port={text}\n", "f"),
    "an address": lambda text: parse_hostfile(f"a0 addr={text}\n", "f"),
    "Open MPI": lambda text: parse_hostfile(f"ann@{text} slots = 8 max-slots=9\n", "f"),
    "MPICH Hydra": lambda text: parse_hostfile(f"{text}:8\n", "f"),
    "a node list": lambda text: parse_hostfile(f"n[1-2],{text}\n", "f"),
    "inside a range": lambda text: parse_hostfile(f"n[1-{text}]\n", "f"),
    "--include": lambda text: select_hosts(OFFER, text, None, None),
    "--exclude": lambda text: select_hosts(OFFER, None, text, None),
    "Slurm": lambda text: _of_slurm(text),
}


def _of_slurm(text: str) -> Sequence[Host]:
    allocation = read_allocation({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": text})
    return allocation.hosts() if allocation is not None else ()


def check(read: Callable[[str], Sequence[Host]], text: str) -> None:
    """See that what comes of a text is safe in any command line, or an error that is safe to print."""
    try:
        hosts = read(text)
    except UsageError as error:
        assert error.message.isprintable()
        assert error.fix.isprintable()
        return
    assert len({host.name for host in hosts}) == len(hosts)
    for host in hosts:
        assert SAFE.fullmatch(host.name), host
        assert host.user is None or SAFE.fullmatch(host.user), host
        assert host.address is None or SAFE.fullmatch(host.address), host


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_nasty_name_gets_through(read: Callable[[str], Sequence[Host]]) -> None:
    for text in NASTY:
        check(read, text)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@given(text=st.lists(st.sampled_from(PIECES), max_size=4).map("".join))
def test_no_text_gives_a_name_that_is_not_safe(read: Callable[[str], Sequence[Host]], text: str) -> None:
    check(read, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('hosts = "a,-oProxyCommand=x"', "launcher.toml (hosts): host name '-oProxyCommand=x' begins with '-'"),
        ('hosts = ["a", "$(id)"]', "launcher.toml (hosts): host name '$(id)' contains '$'"),
        ('hosts = "a\\u001b]0;t\\u0007"', "launcher.toml (hosts): 'a\\x1b]0;t\\x07' has an unmatched bracket"),
        ('hostfile = "\\u001b[2Jx"', "'\\x1b[2Jx': no such hostfile"),
        ('hosts = "a"\nexclude = "-oX"', "--exclude: host name '-oX' begins with '-'"),
        ('"\\u001b[2J" = "x"', "launcher.toml: no option '\\x1b[2J'"),
    ],
)
def test_a_nasty_launcher_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    (tmp_path / "launcher.toml").write_text(f"{line}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["hosts"])
    assert end.value.code == 2
    said = [text for text in capsys.readouterr().err.splitlines() if not text.startswith("launch: using ")]
    assert said[0] == f"launch: {message}"
