"""Hosts: ranges, filters, folding, and every message a user can get from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.hosts.host import select_hosts
from launcher.hosts.hostfiles import parse_hostfile
from launcher.hosts.ranges import expand_ranges, fold_names, split_list

RANGE_FIX = "write ranges as gpu[1-4,7] or gpu[01-10], without spaces, the lower number first"


def names_of(hosts):
    return [host.name for host in hosts]


def nodeset(text):
    return set(NodeSet(text, resolver=RESOLVER_NOGROUP))


# ranges


def test_a_range_as_slurm_prints_it_grows_past_its_zeros():
    names = expand_ranges("n[01-100]")
    assert (names[0], names[98], names[99], len(names)) == ("n01", "n99", "n100", 100)


def test_as_many_names_as_are_allowed_expand():
    assert len(expand_ranges("r[1-256]n[1-256]")) == 65536


@pytest.mark.parametrize(
    ("pattern", "message", "fix"),
    [
        ("n[]", "'' in 'n[]' is neither a number nor a range", RANGE_FIX),
        ("n[1, 2]", "' 2' in 'n[1, 2]' is neither a number nor a range", RANGE_FIX),
        ("n[\u0661]", "'\u0661' in 'n[\u0661]' is neither a number nor a range", RANGE_FIX),
        ("n[5-3]", "'5-3' in 'n[5-3]' is neither a number nor a range", RANGE_FIX),
        ("n[1-04]", "'1-04' in 'n[1-04]' is neither a number nor a range", RANGE_FIX),
        (
            "n[0-999999999999999999][0-9]",
            "'n[0-999999999999999999][0-9]' gives 10000000000000000000 names; the limit is 65536",
            "",
        ),
    ],
)
def test_a_bad_range_is_refused_before_it_is_made(pattern, message, fix):
    with pytest.raises(UsageError) as caught:
        expand_ranges(pattern)
    assert (caught.value.message, caught.value.fix) == (message, fix)


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


@given(words, brackets(), words, brackets(), words)
def test_expansion_agrees_with_clustershell_and_keeps_the_order(head, first, middle, second, tail):
    pattern = f"{head}{first[0]}{middle}{second[0]}{tail}"
    names = expand_ranges(pattern)
    assert set(names) == nodeset(pattern)
    assert list(names) == [f"{head}{a}{middle}{b}{tail}" for a in first[1] for b in second[1]]


def test_a_list_is_split_outside_brackets_only():
    assert split_list("a,b[1,2] c\td[1, 2]\ne,[x") == ("a", "b[1,2]", "c", "d[1, 2]", "e", "[x")


# filters

OFFER = parse_hostfile("gpu[1-4] slots=4\nGPU7\n::1 slots=2\n", "f")


@pytest.mark.parametrize(
    ("include", "chosen"),
    [
        ("gpu4,gpu1", [("gpu1", None, 4), ("gpu4", None, 4)]),
        ("gpu[2-3] gpu7", [("gpu2", None, 4), ("gpu3", None, 4), ("GPU7", None, None)]),
        ("gpu3@gpu1:3,1", [("gpu1", (3, 1), 2), ("gpu3", None, 4)]),
        (" gpu[1-2]:0, 2 @ gpu7:9 ", [("gpu1", (0, 2), 2), ("gpu2", (0, 2), 2), ("GPU7", (9,), 1)]),
        ("[::1]:1", [("::1", (1,), 1)]),
    ],
)
def test_include_keeps_the_order_of_the_hosts(include, chosen):
    hosts = select_hosts(OFFER, include, None, None)
    assert [(host.name, host.gpus, host.slots) for host in hosts] == chosen


def test_exclude_drops_hosts_or_gpus():
    hosts = select_hosts(OFFER, None, "[::1]:0,1@gpu1:0,2@gpu[2-4]", None)
    assert [(host.name, host.gpus, host.slots) for host in hosts] == [("gpu1", (1, 3), 2), ("GPU7", None, None)]


def test_filters_can_be_applied_to_their_own_result():
    hosts = select_hosts(OFFER, "gpu1:1,3", None, None)
    assert select_hosts(hosts, None, "gpu1:3", None) == (replace(OFFER[0], gpus=(1,), slots=1),)


def test_num_nodes_takes_the_first_after_the_filter():
    assert names_of(select_hosts(OFFER, None, "gpu1", 2)) == ["gpu2", "gpu3"]
    assert select_hosts(OFFER, None, None, None) == OFFER


KNOWN = "choose from gpu1,gpu2,gpu3,gpu4,GPU7,::1"
BAD_FILTERS = [
    ("", None, "--include: names no host", KNOWN),
    ("gpu9", None, "--include: no host 'gpu9' in the list", KNOWN),
    ("gup4", None, "--include: no host 'gup4' in the list", "write 'gpu4'"),
    (
        "ann@gpu1",
        None,
        "--include: no host 'ann' in the list",
        f"{KNOWN}; '@' separates hosts here, so write names without a user",
    ),
    ("gpu1,gpu1", None, "--include: host 'gpu1' is named twice", "name each host once, with all its GPUs"),
    (
        "gpu1,gpu2@gpu3",
        None,
        "--include: 'gpu1,gpu2' isn't a single host",
        "separate hosts with '@' and GPUs with ',': gpu1@gpu2:0,1",
    ),
    (
        "gpu1:0,gpu2",
        None,
        "--include: a GPU in 'gpu1:0,gpu2' must be a number, got 'gpu2'",
        "write GPU numbers after ':', and separate hosts with '@': gpu1:0,1@gpu2:0",
    ),
    ("gpu1:1024", None, "--include: GPU 1024 in 'gpu1:1024' is above 1023", "write the number of a GPU"),
    ("gpu1:1,01", None, "--include: GPU 1 is listed twice in 'gpu1:1,01'", ""),
    ("gpu2:4", None, "--include: host 'gpu2' offers no GPU 4: slots=4 (f:1)", "choose a lower number, or raise slots="),
    (
        None,
        "gpu7:0",
        "--exclude: the number of GPUs of host 'GPU7' is unknown (f:2)",
        "set slots= in a hostfile, or list the GPUs to keep: --include GPU7:1,2,3",
    ),
    (
        None,
        "gpu[1-4],gpu7,::1",
        "--exclude: it leaves 0 of 6 hosts",
        KNOWN.replace("choose from", "keep at least one of"),
    ),
    (
        "gpu1",
        "gpu2",
        "--include and --exclude can't be given together",
        "list the hosts to use with --include, or those to leave out with --exclude",
    ),
]


@pytest.mark.parametrize(("include", "exclude", "message", "fix"), BAD_FILTERS)
def test_a_bad_filter_is_refused(include, exclude, message, fix):
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, include, exclude, None)
    assert caught.value.message == message
    assert fix is None or caught.value.fix == fix


def test_num_nodes_that_can_not_be_had_is_refused():
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, "gpu[1-2]", None, 3)
    assert caught.value.message == "--num-nodes 3: only 2 hosts to choose from"
    assert caught.value.fix == "lower it, or name more hosts than gpu[1-2]"
    with pytest.raises(UsageError) as caught:
        select_hosts(OFFER, None, None, 0)
    assert caught.value.message == "--num-nodes must be at least 1, got 0"


# folding


@pytest.mark.parametrize("name", ["@all", "*", "a!b", "::1", "n[1-2]", ""])
def test_names_that_clustershell_would_misread_are_only_listed(name):
    assert fold_names(["n2", name, "n1"]) == f"n2,{name},n1"


@given(st.lists(st.from_regex(r"\A[a-z0-9]([a-z0-9._-]{0,6}[0-9]{0,4})?\Z"), max_size=12))
def test_folded_names_expand_to_the_same_hosts(names):
    assert nodeset(fold_names(names)) == set(names)
