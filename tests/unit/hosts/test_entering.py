"""What --enter and enter= take, and what of it a host gets."""

from __future__ import annotations

import pytest

from launcher.errors import HostfileError, UsageError
from launcher.hosts.entering import parse_entering
from launcher.hosts.hostfiles import parse_hostfile


@pytest.mark.parametrize(
    "text",
    [
        "docker exec -i train",
        "docker --host=unix:///s exec -iw /t train sh",
        "podman exec --interactive=true --tty=false -u 0 train",
        "docker compose exec -T train",
        "sudo -u docker apptainer exec x.sif",
        "sudo -n -u ml",
        "nsenter -t 42 -a",
        "apptainer exec --nv img.sif",
    ],
)
def test_a_command_that_keeps_stdin_open_is_taken(text: str) -> None:
    assert parse_entering(text) == text


def test_a_command_becomes_the_words_of_a_shell() -> None:
    assert parse_entering("docker exec -iu 0 -e A='b c'  train") == "docker exec -iu 0 -e 'A=b c' train"
    assert parse_entering("echo $HOME; rm") == "echo '$HOME;' rm"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("", "must be a command, got ''", "write it as in 'docker exec -i train'"),
        ("docker exec -i a\nb", "must be a command, got 'docker exec -i a\\nb'", "write it as in"),
        ("docker exec -i 'a", "can't be read: No closing quotation", "write it as in"),
        ("docker exec train", "closes stdin, over which launch speaks to its helper", "add -i after exec"),
        ("sudo -n -u ml docker exec train sh", "closes stdin", "add -i"),
        ("podman exec -itu 0 train", "asks for a terminal", "leave out -t"),
        ("/usr/bin/docker exec -it train", "asks for a terminal, and launch has none there", "leave out -t"),
        ("podman exec -i --tty img", "asks for a terminal, and launch has none there", "leave out -t"),
    ],
)
def test_a_command_that_launch_can_not_speak_through_is_refused(text: str, message: str, fix: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_entering(text)
    assert message in error.value.message and error.value.fix.startswith(fix)


def test_a_hostfile_has_it_in_quotes() -> None:
    lines = (
        'a slots = 8 enter = "docker exec -i train" port=2222', "b enter='podman exec -i it' spare", "c enter=setsid",
        "d",
    )  # fmt: skip
    found = parse_hostfile("\n".join(lines), "file")
    assert [(host.enter, host.slots, host.port, host.is_spare) for host in found] == [
        ("docker exec -i train", 8, 2222, False), ("podman exec -i it", None, None, True),
        ("setsid", None, None, False), ("", None, None, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('a enter="docker exec -i train', "has a quote that isn't closed"),
        ("a enter=docker exec -i train", "expected key=value, got 'exec'"),
        ("a enter='docker exec train'", "enter: 'docker exec train' closes stdin"),
        ("a enter=", "enter: must be a command, got ''"),
    ],
)
def test_a_bad_one_in_a_hostfile_is_refused_at_its_line(line: str, message: str) -> None:
    with pytest.raises(HostfileError) as error:
        parse_hostfile(f"b\n{line}\n", "file")
    assert error.value.message.startswith("file:2: ") and message in error.value.message
