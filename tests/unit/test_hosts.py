"""Hosts: lists, ranges, hostfiles, filters, folding, and every message a user can get from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import EXIT_USAGE, HostfileError, UsageError
from launcher.host_ranges import split_list
from launcher.hosts import (
    Host,
    expand_ranges,
    fold_names,
    parse_hostfile,
    parse_hosts,
    read_hostfile,
    select_hosts,
)

SAMPLES = Path(__file__).parents[2] / "hostfiles"
NAME_RULE = "a name holds letters, digits, '.', '_' and '-', and begins with no '-' or '.'"
unhurried = settings(deadline=None)  # a loaded machine is no bug
KEYS_HINT = "the settings are slots=, user=, port= and addr="
RANGE_HINT = "write ranges as gpu[1-4,7], without spaces"


def names_of(hosts):
    return [host.name for host in hosts]


def nodeset(text):
    return set(NodeSet(text, resolver=RESOLVER_NOGROUP))


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


def test_a_user_belongs_to_every_host_of_the_range():
    assert [(host.user, host.name) for host in parse_hosts("ann@n[1-2],ann@[::1]")] == [
        ("ann", "n1"),
        ("ann", "n2"),
        ("ann", "::1"),
    ]


BAD_LISTS = [
    ("", "--hosts: names no host", "give at least one, as in node1,node2"),
    (" \t\n", "--hosts: names no host", "give at least one, as in node1,node2"),
    ("a,,b", "--hosts: an empty name in 'a,,b'", "remove the extra comma"),
    ("a , ,b", "--hosts: an empty name in 'a , ,b'", "remove the extra comma"),
    (",a", "--hosts: an empty name in ',a'", "remove the extra comma"),
    ("a,", "--hosts: an empty name in 'a,'", "remove the extra comma"),
    ("a b,c,A", "--hosts: host 'A' is named twice, by 'a' and by 'A'", ""),
    ("gpu[1-4],gpu2", "--hosts: host 'gpu2' is named twice, by 'gpu[1-4]' and by 'gpu2'", ""),
    ("::1,[::1]", "--hosts: host '::1' is named twice, by '::1' and by '[::1]'", ""),
    ("-oProxyCommand=x", "--hosts: host name '-oProxyCommand=x' begins with '-'", NAME_RULE),
    ("-l", "--hosts: host name '-l' begins with '-'", NAME_RULE),
    ("..", "--hosts: host name '..' begins with '.'", NAME_RULE),
    ("a;b", "--hosts: host name 'a;b' holds ';'", NAME_RULE),
    ("$(id)", "--hosts: host name '$(id)' holds '$'", NAME_RULE),
    ("a\x1b[2J", "--hosts: 'a\\x1b[2J' has a bracket without its partner", "write ranges as gpu[1-4,7]"),
    ("a\x07", "--hosts: host name 'a\\x07' holds '\\x07'", NAME_RULE),
    ("a\xa0b", "--hosts: host name 'a\\xa0b' holds '\\xa0'", NAME_RULE),
    ("node\u00b2", "--hosts: host name 'node\u00b2' holds '\u00b2'", NAME_RULE),
    ("hosts/two", "--hosts: host name 'hosts/two' holds '/'", "a file with hosts is given by --hostfile"),
    (
        "node1 slots=8",
        "--hosts: host name 'slots=8' holds '='",
        "settings such as slots=8 stand after the name, in a hostfile",
    ),
    (
        "node1:8",
        "--hosts: 'node1:8' is ambiguous: 8 slots or ssh port 8?",
        "in a hostfile write 'node1 slots=8' or 'node1 port=8'",
    ),
    (
        "ann@gpu[1-4]:22",
        "--hosts: 'gpu[1-4]:22' is ambiguous: 22 slots or ssh port 22?",
        "in a hostfile write 'gpu[1-4] slots=22' or 'gpu[1-4] port=22'",
    ),
    (
        "[::1]:22",
        "--hosts: '[::1]:22' is ambiguous: 22 slots or ssh port 22?",
        "in a hostfile write '[::1] slots=22' or '[::1] port=22'",
    ),
    ("node1:x", "--hosts: host name 'node1:x' holds ':'", NAME_RULE),
    ("a:b:c", "--hosts: 'a:b:c' is no IPv6 address", "write addresses as 2001:db8::1 or [2001:db8::1]"),
    ("fe80::1%$(id)", "--hosts: 'fe80::1%$(id)' is no IPv6 address", None),
    ("ann@", "--hosts: the host name is empty", NAME_RULE),
    (
        "@a",
        "--hosts: '' is no user name",
        "letters, digits, '.', '_' and '-' stand here; ssh_config takes any user",
    ),
    ("-l@a", "--hosts: '-l' is no user name", None),
    ("ann@b@c", "--hosts: 'ann@b' is no user name", None),
    ("a" * 254, f"--hosts: '{'a' * 97}...' gives a name of 254 characters, 253 is the limit", ""),
    ("a[1-65536],b", "--hosts: more than 65536 hosts", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), BAD_LISTS)
def test_a_bad_list_is_refused(text, message, hint):
    with pytest.raises(HostfileError) as caught:
        parse_hosts(text)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint
    assert (caught.value.source, caught.value.line) == ("--hosts", None)
    assert caught.value.exit_code == EXIT_USAGE


# ranges


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("node", ["node"]),
        ("n[3,1-2]", ["n3", "n1", "n2"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("n[99-101,001]x", ["n99x", "n100x", "n101x", "n001x"]),
        ("n[0]", ["n0"]),
        ("n[00-01]", ["n00", "n01"]),
        ("r[2,1]n[1-2]", ["r2n1", "r2n2", "r1n1", "r1n2"]),
        ("[1-2][0-1]", ["10", "11", "20", "21"]),
    ],
)
def test_ranges_expand_in_the_order_written(pattern, names):
    assert list(expand_ranges(pattern)) == names


def test_a_range_as_slurm_prints_it_grows_past_its_zeros():
    names = expand_ranges("n[01-100]")
    assert (names[0], names[98], names[99], len(names)) == ("n01", "n99", "n100", 100)


def test_as_many_names_as_are_allowed_expand():
    assert len(expand_ranges("r[1-256]n[1-256]")) == 65536


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("n[1-4", "'n[1-4' has a bracket without its partner", "write ranges as gpu[1-4,7]"),
        ("n1]", "'n1]' has a bracket without its partner", "write ranges as gpu[1-4,7]"),
        ("n[1[2]]", "'n[1[2]]' has a bracket without its partner", "write ranges as gpu[1-4,7]"),
        ("n[]", "'' in 'n[]' is no number or range", RANGE_HINT),
        ("n[1,]", "'' in 'n[1,]' is no number or range", RANGE_HINT),
        ("n[1, 2]", "' 2' in 'n[1, 2]' is no number or range", RANGE_HINT),
        ("n[a-c]", "'a-c' in 'n[a-c]' is no number or range", RANGE_HINT),
        ("n[1-9/2]", "'1-9/2' in 'n[1-9/2]' is no number or range", RANGE_HINT),
        ("n[\u0661]", "'\u0661' in 'n[\u0661]' is no number or range", RANGE_HINT),
        (
            "n[5-3]",
            "range '5-3' in 'n[5-3]' runs backwards",
            "write 3-5; for another order list the numbers, the order is kept",
        ),
        (
            "n[1-04]",
            "range '1-04' in 'n[1-04]' has ends of two widths",
            "write both ends with the same number of digits",
        ),
        (
            "n[01-5]",
            "range '01-5' in 'n[01-5]' has ends of two widths",
            "write both ends with the same number of digits",
        ),
        ("n[1-65537]", "'n[1-65537]' gives 65537 names, 65536 is the limit", ""),
        (
            "n[0-999999999999999999][0-9]",
            "'n[0-999999999999999999][0-9]' gives 10000000000000000000 names, 65536 is the limit",
            "",
        ),
    ],
)
def test_a_bad_range_is_refused_before_it_is_made(pattern, message, hint):
    with pytest.raises(UsageError) as caught:
        expand_ranges(pattern)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@st.composite
def brackets(draw):
    """A bracket's text and its numbers, in order; spans of one width, which ClusterShell insists on."""
    texts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(0, 4))
        low = draw(st.integers(0, 1200))
        high = low + draw(st.integers(0, 12))
        if len(f"{low:0{width}d}") != len(f"{high:0{width}d}"):
            width = 0
        span = f"{low:0{width}d}-{high:0{width}d}" if high > low else f"{low:0{width}d}"
        texts.append(span)
        numbers += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return f"[{','.join(texts)}]", numbers


words = st.text("abz-.", min_size=1, max_size=4).map(lambda text: f"n{text}x")


@unhurried
@given(words, brackets(), words, brackets(), words)
def test_expansion_agrees_with_clustershell_and_keeps_the_order(head, first, middle, second, tail):
    pattern = f"{head}{first[0]}{middle}{second[0]}{tail}"
    names = expand_ranges(pattern)
    assert set(names) == nodeset(pattern)
    assert list(names) == [f"{head}{a}{middle}{b}{tail}" for a in first[1] for b in second[1]]


def test_a_list_is_split_outside_brackets_only():
    assert split_list("a,b[1,2] c\td[1, 2]\ne,[x") == ("a", "b[1,2]", "c", "d[1, 2]", "e", "[x")


# hostfiles

HOSTFILE = """\
# a comment
gpu1 slots=8   # a trailing one
\t
ann@gpu[2-3]\tslots=4 port=2222
gpu4 user=bob addr=10.0.0.4#no space
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


def test_one_host_of_a_range_may_have_an_address():
    assert parse_hostfile("gpu[1] addr=10.0.0.1", "f") == (Host("gpu1", address="10.0.0.1", source="f:1"),)


BAD_LINES = [
    ("node1 slots=x", "slots must be a number, got 'x'", ""),
    ("node1 slots=", "slots must be a number, got ''", ""),
    ("node1 slots=-1", "slots must be a number, got '-1'", ""),
    ("node1 slots=\u0664", "slots must be a number, got '\u0664'", ""),
    ("node1 slots=0", "slots must be between 1 and 65536, got 0", ""),
    ("node1 port=65536", "port must be between 1 and 65535, got 65536", ""),
    ("node1 port=\x1b[1m", "port must be a number, got '\\x1b[1m'", ""),
    ("node1 slot=4", "unknown key 'slot'", "did you mean 'slots'?"),
    ("node1 max_slots=4", "unknown key 'max_slots'", "did you mean 'slots'?"),
    ("node1 address=10.0.0.1", "unknown key 'address'", "did you mean 'addr'?"),
    ("node1 gpus=4", "unknown key 'gpus'", KEYS_HINT),
    ("node1 =4", "no spaces around '=', got 'node1 =4'", "write 'node1=4'"),
    ("node1 slots = 4", "no spaces around '=', got 'node1 slots = 4'", "write 'node1 slots=4'"),
    ("node1 slots= 4", "no spaces around '=', got 'node1 slots= 4'", "write 'node1 slots=4'"),
    ("node1 slots=4 slots=8", "slots is given twice, '4' and '8'", ""),
    ("ann@node1 user=bob", "user is given twice, by 'ann@node1' and by 'user=bob'", ""),
    (
        "node1 user=a;b",
        "'a;b' is no user name",
        "letters, digits, '.', '_' and '-' stand here; ssh_config takes any user",
    ),
    ("node1 addr=gpu1", "addr must be an IP address, got 'gpu1'", "as in addr=10.0.0.1"),
    ("node1 addr=10.0.0.256", "addr must be an IP address, got '10.0.0.256'", "as in addr=10.0.0.1"),
    ("node1 addr=fe80::1%a;b", "addr must be an IP address, got 'fe80::1%a;b'", "as in addr=10.0.0.1"),
    (
        "n[1-2] addr=10.0.0.1",
        "addr= is the address of one host, 'n[1-2]' is 2",
        "give each of them a line with its own addr=",
    ),
    (
        "node1 node2",
        "expected key=value, got 'node2'",
        f"write one host or range per line; {KEYS_HINT}",
    ),
    ("node1,node2", "host name 'node1,node2' holds ','", "write one host or range per line"),
    (
        "node1:8",
        "'node1:8' is ambiguous: 8 slots or ssh port 8?",
        "in a hostfile write 'node1 slots=8' or 'node1 port=8'",
    ),
    ("n[5-3]", "range '5-3' in 'n[5-3]' runs backwards", None),
    ("n\x00", "host name 'n\\x00' holds '\\x00'", NAME_RULE),
    ("node0", "host 'node0' is named twice, by hostfiles/two:1 and by hostfiles/two:3", ""),
    ("n[1,1]", "host 'n1' is named twice, by hostfiles/two:3 and by hostfiles/two:3", ""),
]


@pytest.mark.parametrize(("line", "message", "hint"), BAD_LINES)
def test_a_bad_line_is_refused_with_its_place(line, message, hint):
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(f"node0\n\n{line}\n", "hostfiles/two")
    assert caught.value.message == f"hostfiles/two:3: {message}"
    assert hint is None or caught.value.hint == hint
    assert (caught.value.source, caught.value.line) == ("hostfiles/two", 3)


@pytest.mark.parametrize("text", ["", "\n\n", "# node1\n  \t# node2"])
def test_a_hostfile_without_hosts_is_refused(text):
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "f")
    assert (caught.value.message, caught.value.hint) == (
        "f: names no host",
        "write one per line, as in: node1 slots=8",
    )


def test_a_form_feed_does_not_shift_line_numbers():
    with pytest.raises(HostfileError) as caught:
        parse_hostfile("a # \x0c \u2028 \x85\nb;", "f")
    assert caught.value.message == "f:2: host name 'b;' holds ';'"


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
    assert caught.value.hint == "save the file as UTF-8"


def test_a_named_file_that_is_missing_or_no_file_is_an_error(tmp_path):
    with pytest.raises(HostfileError) as caught:
        read_hostfile(tmp_path / "none")
    assert caught.value.message == f"{tmp_path}/none: no such hostfile"
    assert caught.value.hint == "check the path given to --hostfile"
    with pytest.raises(HostfileError) as caught:
        read_hostfile(tmp_path)
    assert caught.value.message == f"{tmp_path}: can't be read: Is a directory"
    with pytest.raises(HostfileError) as caught:
        read_hostfile(Path("a\x00b"))
    assert caught.value.message == "'a\\x00b': can't be read: embedded null byte"


def test_the_samples_are_valid():
    assert [(host.name, host.slots) for host in read_hostfile(SAMPLES / "two-nodes")] == [
        ("node1", None),
        ("node2", None),
    ]
    hosts = read_hostfile(SAMPLES / "sample")
    assert fold_names(names_of(hosts[:8])) == "gpu[1-4,7],lab1,node[01-02]"
    assert {host.user for host in hosts} == {None, "ann"}
    assert [host.address for host in hosts if host.address] == ["10.0.0.12", "fd00::8"]


pieces = st.sampled_from(["gpu", "[", "]", ",", "-", ":", "@", "=", " ", "#", "1", "07", "slots", "::1", "\n"])
nasty = st.one_of(st.text(max_size=60), st.lists(pieces, max_size=20).map("".join))


@pytest.mark.parametrize(
    "read",
    [
        parse_hosts,
        lambda text: parse_hostfile(text, "f"),
        lambda text: select_hosts(OFFER, text, None, None),
        lambda text: select_hosts(OFFER, None, text, None),
    ],
    ids=["hosts", "hostfile", "include", "exclude"],
)
@unhurried
@given(text=nasty)
def test_any_text_gives_hosts_or_a_clear_error(read, text):
    try:
        hosts = read(text)
    except UsageError as error:
        assert error.message.isprintable()
        assert error.hint.isprintable()
    else:
        assert hosts
        assert len({host.name for host in hosts}) == len(hosts)


@unhurried
@given(st.binary(max_size=60))
def test_any_bytes_give_hosts_or_a_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    try:
        assert read_hostfile(path)
    except HostfileError as error:
        assert error.message.isprintable()


# filters

OFFER = parse_hostfile("gpu[1-4] slots=4\nGPU7\n::1 slots=2\n", "f")


@pytest.mark.parametrize(
    ("include", "chosen"),
    [
        ("gpu4,gpu1", [("gpu1", None, 4), ("gpu4", None, 4)]),
        ("gpu[2-3] gpu7", [("gpu2", None, 4), ("gpu3", None, 4), ("GPU7", None, None)]),
        ("gpu3@gpu1:3,1", [("gpu1", (3, 1), 2), ("gpu3", None, 4)]),
        ("gpu1:0", [("gpu1", (0,), 1)]),
        (" gpu[1-2]:0, 2 @ gpu7:9 ", [("gpu1", (0, 2), 2), ("gpu2", (0, 2), 2), ("GPU7", (9,), 1)]),
        ("::1,gpu1", [("gpu1", None, 4), ("::1", None, 2)]),
        ("[::1]:1", [("::1", (1,), 1)]),
    ],
)
def test_include_keeps_the_order_of_the_hosts(include, chosen):
    hosts = select_hosts(OFFER, include, None, None)
    assert [(host.name, host.gpus, host.slots) for host in hosts] == chosen


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("gpu[1-3],::1", [("gpu4", None, 4), ("GPU7", None, None)]),
        ("gpu[1-4]@gpu7@[::1]:0", [("::1", (1,), 1)]),
        ("gpu1:0,2@gpu[2-4]@gpu7", [("gpu1", (1, 3), 2), ("::1", None, 2)]),
        ("[::1]:0,1@gpu[1-4]", [("GPU7", None, None)]),
    ],
)
def test_exclude_drops_hosts_or_gpus(exclude, left):
    hosts = select_hosts(OFFER, None, exclude, None)
    assert [(host.name, host.gpus, host.slots) for host in hosts] == left


def test_filters_can_be_applied_to_their_own_result():
    hosts = select_hosts(OFFER, "gpu1:1,3", None, None)
    assert select_hosts(hosts, None, "gpu1:3", None) == (replace(OFFER[0], gpus=(1,), slots=1),)


def test_num_nodes_takes_the_first_after_the_filter():
    assert names_of(select_hosts(OFFER, None, "gpu1", 2)) == ["gpu2", "gpu3"]
    assert select_hosts(OFFER, None, None, None) == OFFER


KNOWN = "the hosts are gpu1,gpu2,gpu3,gpu4,GPU7,::1"
BAD_FILTERS = [
    ("", None, "--include: names no host", KNOWN),
    ("gpu1,", None, "--include: an empty name in 'gpu1,'", "remove the extra comma"),
    ("gpu9", None, "--include: no host 'gpu9' in the list", "did you mean 'gpu4'?"),
    (None, "lab", "--exclude: no host 'lab' in the list", KNOWN),
    (
        "ann@gpu1",
        None,
        "--include: no host 'ann' in the list",
        f"{KNOWN}; '@' joins hosts here, names carry no user",
    ),
    ("gpu1,gpu1", None, "--include: host 'gpu1' is named twice", ""),
    ("gpu1@", None, "--include: the host name is empty", NAME_RULE),
    (
        "gpu1,gpu2@gpu3",
        None,
        "--include: 'gpu1,gpu2' is no single host",
        "join hosts by '@', GPUs by ',': gpu1@gpu2:0,1",
    ),
    (
        "gpu1:0,gpu2:1",
        None,
        "--include: 'gpu1:0,gpu2' is no single host",
        "join hosts by '@', GPUs by ',': gpu1@gpu2:0,1",
    ),
    (
        "gpu1:0,gpu2",
        None,
        "--include: a GPU in 'gpu1:0,gpu2' must be a number, got 'gpu2'",
        "after ':' stand GPU numbers; join hosts by '@': gpu1:0,1@gpu2:0",
    ),
    ("gpu1:", None, "--include: a GPU in 'gpu1:' must be a number, got ''", None),
    ("gpu1:-1", None, "--include: a GPU in 'gpu1:-1' must be a number, got '-1'", None),
    ("gpu1:1,01", None, "--include: GPU 1 stands twice in 'gpu1:1,01'", ""),
    ("gpu2:4", None, "--include: host 'gpu2' offers no GPU 4", "it has slots=4 (f:1)"),
    (None, "gpu2:4", "--exclude: host 'gpu2' offers no GPU 4", "it has slots=4 (f:1)"),
    (
        None,
        "gpu7:0",
        "--exclude: how many GPUs host 'GPU7' has is not known (f:2)",
        "give slots= in a hostfile, or name the others: --include GPU7:1,2,3",
    ),
    (None, "gpu[1-4],gpu7,::1", "--exclude: no host is left of 6", KNOWN),
    (
        "gpu1",
        "gpu2",
        "--include and --exclude can't be given together",
        "--include names all that is wanted, --exclude all that is not: give one of them",
    ),
]


@pytest.mark.parametrize(("include", "exclude", "message", "hint"), BAD_FILTERS)
def test_a_bad_filter_is_refused(include, exclude, message, hint):
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, include, exclude, None)
    assert caught.value.message == message
    assert hint is None or caught.value.hint == hint


def test_num_nodes_that_can_not_be_had_is_refused():
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, "gpu[1-2]", None, 3)
    assert caught.value.message == "--num-nodes wants 3 hosts, there are 2"
    assert caught.value.hint == "the hosts are gpu[1-2]"
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, None, None, 0)
    assert caught.value.message == "--num-nodes must be at least 1, got 0"


# folding


def test_names_fold_for_display():
    assert fold_names(["gpu3", "gpu1", "gpu2", "lab"]) == "gpu[1-3],lab"
    assert fold_names([]) == ""


@pytest.mark.parametrize("name", ["@all", "*", "a!b", "a&b", "a^b", "::1", "a,b", "n[1-2]", "a%b", "n\n", ""])
def test_names_that_clustershell_would_misread_are_only_listed(name):
    assert fold_names(["n2", name, "n1"]) == f"n2,{name},n1"


@unhurried
@given(st.lists(st.from_regex(r"\A[a-z0-9]([a-z0-9._-]{0,6}[0-9]{0,4})?\Z"), max_size=12))
def test_folded_names_expand_to_the_same_hosts(names):
    assert nodeset(fold_names(names)) == set(names)
