"""Hostfiles: every dialect read, every message a user can get from them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import EXIT_USAGE, HostfileError, UsageError
from launcher.hosts.host import Host, part_spares
from launcher.hosts.hostfiles import parse_hostfile, parse_hosts, read_hostfile

SAMPLES = Path(__file__).parents[3] / "hostfiles"
NAME_RULE = "use letters, digits, '.', '_' and '-', and begin with a letter, a digit or '_'"
KEYS_FIX = "use slots=, user=, port=, addr= or enter="
ONCE = "list each host once, with slots=N for N processes"


# --hosts


def test_a_list_keeps_order_users_ranges_and_addresses():
    assert parse_hosts("b,a,ann@c,gpu[2,1,07-09], [2001:db8::1]\tfe80::1%eth0\n") == (
        Host("b", source="--hosts"),
        Host("a", source="--hosts"),
        Host("c", user="ann", source="--hosts"),
        Host("gpu2", source="--hosts"),
        Host("gpu1", source="--hosts"),
        Host("gpu07", source="--hosts"),
        Host("gpu08", source="--hosts"),
        Host("gpu09", source="--hosts"),
        Host("2001:db8::1", source="--hosts"),
        Host("fe80::1%eth0", source="--hosts"),
    )


BAD_LISTS = [
    ("", "--hosts: names no host", "give at least one, as in node1,node2"),
    ("a,,b", "--hosts: empty name in 'a,,b'", "remove the extra comma"),
    ("a b,c,A", "--hosts: host 'A' is named twice, by 'a' and by 'A'", "list each host once"),
    ("gpu[1-4],gpu2", "--hosts: host 'gpu2' is named twice, by 'gpu[1-4]' and by 'gpu2'", "list each host once"),
    ("-oProxyCommand=x", "--hosts: host name '-oProxyCommand=x' begins with '-'", NAME_RULE),
    ("a;b", "--hosts: host name 'a;b' contains ';'", NAME_RULE),
    ("a\x1b[2J", "--hosts: 'a\\x1b[2J' has an unmatched bracket", "write ranges as gpu[1-4,7]"),
    ("hosts/two", "--hosts: host name 'hosts/two' contains '/'", "pass a file of hosts with --hostfile"),
    (
        "node1 slots=8",
        "--hosts: host name 'slots=8' contains '='",
        "write settings such as slots=8 after the name, in a hostfile",
    ),
    (
        "ann@gpu[1-4]:128",
        "--hosts: 'ann@gpu[1-4]:128' is ambiguous: 128 slots or SSH port 128?",
        "in a hostfile, write slots=128 or port=128 after the name",
    ),
    (
        "node1 8",
        "--hosts: 'node1 8' is ambiguous: is 8 a number of slots, a port or a host?",
        "write slots=8 or port=8",
    ),
    ("a:b:c", "--hosts: 'a:b:c' isn't an IPv6 address", "write addresses as 2001:db8::1 or [2001:db8::1]"),
    ("ann@", "--hosts: the host name is empty", NAME_RULE),
    ("@a", "--hosts: '@a' is a ClusterShell group", "list its hosts: nodeset -e '@a'"),
    (
        "-l@a",
        "--hosts: '-l' isn't a user name",
        "use letters, digits, '.', '_' and '-', or set any user in ssh_config",
    ),
    ("n[1-4]!n2", "--hosts: host name 'n1!n2' contains '!'", "list the hosts to use, or leave some out with --exclude"),
    ("a" * 254, f"--hosts: '{'a' * 97}...' gives a name of 254 characters; the limit is 253", ""),
    ("a[1-65536],b", "--hosts: more than 65536 hosts", ""),
]


@pytest.mark.parametrize(("text", "message", "fix"), BAD_LISTS)
def test_a_bad_list_is_refused(text, message, fix):
    with pytest.raises(HostfileError) as caught:
        parse_hosts(text)
    assert caught.value.message == message
    assert fix is None or caught.value.fix == fix
    assert (caught.value.source, caught.value.line) == ("--hosts", None)
    assert caught.value.exit_code == EXIT_USAGE


# hostfiles

HOSTFILE = """\
# a comment
gpu1 slots=8   # a trailing one
\t
ann@gpu[2-3]\tslots=4 port=2222
gpu[4] user=bob addr=10.0.0.4#no space
[2001:db8::5] addr=[fd00::5]
fe80::6%eth0 addr=fe80::6%ib0"""

PARSED = (
    Host("gpu1", slots=8, source="f:2"),
    Host("gpu2", user="ann", port=2222, slots=4, source="f:4"),
    Host("gpu3", user="ann", port=2222, slots=4, source="f:4"),
    Host("gpu4", user="bob", address="10.0.0.4", source="f:5"),
    Host("2001:db8::5", address="fd00::5", source="f:6"),
    Host("fe80::6%eth0", address="fe80::6%ib0", source="f:7"),
)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_hostfile_is_read_whole(newline):
    assert parse_hostfile(HOSTFILE.replace("\n", newline), "f") == PARSED


BAD_LINES = [
    ("node1 slots=x", "slots must be a number, got 'x'", ""),
    ("node1 slots=\u0664", "slots must be a number, got '\u0664'", ""),
    ("node1 port=65536", "port must be between 1 and 65535, got 65536", ""),
    ("node1 slot=4", "unknown key 'slot'", "write 'slots'"),
    ("node1 slots=4 max_slots=2", "max_slots=2 is less than slots=4", "keep slots= alone, with the number you want"),
    ("node1 address=10.0.0.1", "unknown key 'address'", "write 'addr'"),
    ("node1 gpus=4", "unknown key 'gpus'", KEYS_FIX),
    ("ann@node1 user=bob", "user is given twice, by 'ann@node1' and by 'user=bob'", ""),
    ("a:8 slots=8", "slots is given twice, by 'a:8' and by 'slots=8'", ""),
    ("a:0", "slots must be between 1 and 1024, got 0", ""),
    ("a:65536", "port must be between 1 and 65535, got 65536", ""),
    ("node1 addr=gpu1", "addr must be an IP address, got 'gpu1'", "write it as in addr=10.0.0.1"),
    (
        "n[1-2] addr=10.0.0.1",
        "addr= is the address of one host, but 'n[1-2]' names 2",
        "give each host its own line with its own addr=",
    ),
    (
        "node1 node2 slots=4",
        "expected key=value, got 'node2'",
        f"write one host or range per line; for settings, {KEYS_FIX}",
    ),
    ("node1,node2 slots=4", "host name 'node1,node2' contains ','", "write one host or range per line"),
    (
        "[gpu]",
        "'[gpu]' is a line of an Ansible inventory, not of a hostfile",
        "list its hosts, one per line: ansible all -i FILE --list-hosts",
    ),
    (
        "gpu1 ansible_host=10.0.0.1 ansible_user=ann",
        "'gpu1 ansible_host=10.0.0.1 ansible_user=ann' is a line of an Ansible inventory, not of a hostfile",
        "list its hosts, one per line: ansible all -i FILE --list-hosts",
    ),
    (
        "#include more",
        "'#include more': included files are not read",
        "list its hosts here; if this is a comment, put a space after '#' (pdsh needs it)",
    ),
    ("node0", "host 'node0' is named twice, by hostfiles/two:1 and by hostfiles/two:3", ONCE),
]


@pytest.mark.parametrize(("line", "message", "fix"), BAD_LINES)
def test_a_bad_line_is_refused_with_its_place(line, message, fix):
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(f"node0\n\n{line}\n", "hostfiles/two")
    assert caught.value.message == f"hostfiles/two:3: {message}"
    assert fix is None or caught.value.fix == fix
    assert (caught.value.source, caught.value.line) == ("hostfiles/two", 3)


@pytest.mark.parametrize("text", ["", "\n\n", "# node1\n  \t# node2"])
def test_a_hostfile_without_hosts_is_refused(text):
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "f")
    assert (caught.value.message, caught.value.fix) == (
        "f: names no host",
        "write one per line, as in: node1 slots=8",
    )


def test_a_form_feed_does_not_shift_line_numbers():
    with pytest.raises(HostfileError) as caught:
        parse_hostfile("a # \x0c \u2028 \x85\nb;", "f")
    assert caught.value.message == "f:2: host name 'b;' contains ';'"


def test_a_file_is_read_with_byte_order_mark_and_foreign_comments(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes("\ufeffnode1 # M\u00fcller\r\nnode2".encode())
    assert read_hostfile(path) == (
        Host("node1", source=f"{path}:1"),
        Host("node2", source=f"{path}:2"),
    )


def test_a_file_that_is_not_utf8_is_refused_at_its_line(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"node1\nnode2 # M\xfcller\n")
    with pytest.raises(HostfileError) as caught:
        read_hostfile(path)
    assert caught.value.message == f"{path}:2: byte 0xfc is not UTF-8"
    assert caught.value.fix == "save the file as UTF-8"


def test_a_named_file_that_is_missing_or_no_file_is_an_error(tmp_path):
    with pytest.raises(HostfileError) as caught:
        read_hostfile(tmp_path / "none")
    assert caught.value.message == f"{tmp_path}/none: no such hostfile"
    assert caught.value.fix == "check the path given to --hostfile"
    with pytest.raises(HostfileError) as caught:
        read_hostfile(tmp_path)
    assert caught.value.message == f"{tmp_path}: can't be read: Is a directory"
    with pytest.raises(HostfileError) as caught:
        read_hostfile(Path("a\x00b"))
    assert caught.value.message == "'a\\x00b': can't be read: embedded null byte"


# dialects

# What a file holds, and the hosts that it means.
DIALECTS = [
    ("root@n5,n6", [Host("n5", user="root"), Host("n6")]),
    ("10.0.0.2 10.0.0.1 ::1", [Host("10.0.0.2"), Host("10.0.0.1"), Host("::1")]),
    ("a,8\n", [Host("a"), Host("8")]),
    ("b[2,1] a,c\n", [Host("b2"), Host("b1"), Host("a"), Host("c")]),
    ("ann@a slots = 8 max-slots=9 // c\n", [Host("a", user="ann", slots=8)]),
    ("a count=2\nb user-name=ann cpu=1", [Host("a", slots=2), Host("b", user="ann", slots=1)]),
    ("[::1],[fe80::2] b", [Host("::1"), Host("fe80::2"), Host("b")]),
    ("a:2222 slots=8\nb:22\n", [Host("a", port=2222, slots=8), Host("b", port=22)]),
    ("a:64,b:1024,c:65535\n", [Host("a", slots=64), Host("b", port=1024), Host("c", port=65535)]),
]


@pytest.mark.parametrize(("text", "hosts"), DIALECTS)
def test_every_dialect_is_read(text, hosts):
    read = parse_hostfile(text, "f")
    assert [said(host) for host in read] == [said(host) for host in hosts]


def said(host):
    return host.name, host.user, host.port, host.address, host.slots


def test_a_login_has_a_port_and_no_slots():
    """As of --controller, and of ps --hosts; 443 is where firewalls leave ssh a hole."""
    read = parse_hosts("a:8,b:443,[::1]:22", are_logins=True)
    assert [(host.name, host.port, host.slots) for host in read] == [
        ("a", 8, None),
        ("b", 443, None),
        ("::1", 22, None),
    ]


# One sample for each dialect that people have, and the hosts that it means.
SAMPLE_HOSTS = {
    "clustershell": "gpu3 gpu4 gpu1 gpu2 login viz01 viz02",
    "deepspeed": "worker-1=8 worker-2=8 worker-3=4",
    "horovod": "gpu1=8 gpu2=8",
    "hydra": "gpu1=8 ann@gpu2=8 gpu3=4",
    "names": "gpu1 gpu2.example.com 10.0.0.3 ann@gpu4",
    "openmpi": "gpu1=8 gpu2.example.com=8 ann@10.0.0.3=4:2222 gpu4=4 gpu5",
    "pdsh": "gpu1 gpu2 gpu3 gpu7 login gpu08 gpu09 rack1-node1 rack1-node2 rack2-node1 rack2-node2 spare.example.com",
    "sample": "gpu1=8 gpu2 gpu3=8 gpu4=8 gpu7=8 node01=4 node02=4 ann@lab1:2222 ann@lab2:2222 "
    "login.example.com=8/10.0.0.12 gpu9=8 2001:db8::7 2001:db8::8/fd00::8",
    "slurm": "gpu1 gpu2 gpu3 gpu007 gpu008 gpu009 gpu010 login",
    "ssh-aliases": "lab-a lab-b=4",
    "two-nodes": "gpu1 gpu2",
}


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("gpu9 spare", ["gpu9"]),
        ("gpu9 slots=8 spare", ["gpu9"]),
        ("ann@gpu[8-9] spare port=22", ["gpu8", "gpu9"]),
        ("gpu9 spare=false", []),
        ("gpu8, spare", []),  # a list of two hosts
        ("gpu8 gpu9 spare", []),
    ],
)
def test_a_spare_is_marked(line, marked):
    assert [host.name for host in parse_hostfile(line, "two") if host.is_spare] == marked


def test_spares_are_the_last_hosts_or_those_that_are_marked():
    hosts = parse_hostfile("a\nb spare\nc", "two")
    assert [[host.name for host in part] for part in part_spares(hosts, None)] == [["a", "c"], ["b"]]
    plain = parse_hosts("a,b,c")
    assert [[host.name for host in part] for part in part_spares(plain, 2)] == [["a"], ["b", "c"]]
    assert all(host.is_spare for host in part_spares(plain, 2)[1])
    assert part_spares(plain, None) == (plain, ())


@pytest.mark.parametrize(
    ("text", "spares", "error"),
    [
        ("a spare\nb", 1, "both choose the spares"),
        ("a\nb", 2, "all hosts are spares"),
        ("a spare", None, "all hosts are spares"),
    ],
)
def test_spares_that_cannot_be(text, spares, error):
    with pytest.raises(UsageError, match=error):
        part_spares(parse_hostfile(text, "two"), spares)


def test_every_sample_has_its_hosts():
    assert sorted(path.name for path in SAMPLES.iterdir()) == sorted(SAMPLE_HOSTS)


@pytest.mark.parametrize(("name", "hosts"), SAMPLE_HOSTS.items())
def test_a_sample_means_these_hosts(name, hosts):
    read = read_hostfile(SAMPLES / name)
    assert " ".join(map(short, read)) == hosts
    assert (SAMPLES / name).read_text().startswith("# ")


def short(host):
    user = f"{host.user}@" if host.user else ""
    slots = f"={host.slots}" if host.slots else ""
    port = f":{host.port}" if host.port else ""
    return f"{user}{host.name}{slots}{port}{f'/{host.address}' if host.address else ''}"


# hostile files

HOSTILE = {
    "a huge range": (b"n[1-999999999]", "1: 'n[1-999999999]' gives 999999999 names; the limit is 65536"),
    "many huge ranges": (b",".join(b"n%d-[1-65536]" % n for n in range(4000)), "1: more than 65536 hosts"),
    "a long line": (b"n," * (1 << 19), "1: a line of 1048576 characters; the limit is 65536"),
    "a long name": (b"n" * 60000, f"1: '{'n' * 97}...' gives a name of 60000 characters; the limit is 253"),
    "open brackets": (b"[" * 60000, f"1: '{'[' * 97}...' has an unmatched bracket"),
    "spaces": (b"a=b" + b" " * 60000 + b"x", "1: expected key=value, got 'x'"),
    "colons": (b":1" * 30000, f"1: '{':1' * 48}:...' isn't an IPv6 address"),
    "many lines": (b"\n" * (1 << 23) + b"a", " more than 8 MiB, too large for a hostfile"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_at_once_in_one_line(tmp_path, content, message):
    path = tmp_path / "hosts"
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(HostfileError) as caught:
        read_hostfile(path)
    assert time.process_time() - start < 4  # and not 9, of a pattern that is tried from each place of a line
    assert caught.value.message == f"{path}:{message}"
    assert caught.value.fix.isprintable()


def test_a_file_without_an_end_is_not_read_to_its_end():
    with pytest.raises(HostfileError) as caught:
        read_hostfile(Path("/dev/zero"))
    assert caught.value.message == "/dev/zero: more than 8 MiB, too large for a hostfile"


@given(st.binary(max_size=60))
def test_any_bytes_give_hosts_or_a_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    try:
        assert read_hostfile(path)
    except HostfileError as error:
        assert error.message.isprintable()
