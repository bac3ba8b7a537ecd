"""What one node is asked before anything runs there: hello, facts, route; and who says something else."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import socket
import stat
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S, NEVER_S
from node_process import STAND_IN, WAITS, Message, Node, Nodes, shell

from launcher.forms import NOT_SENT, SentAs
from launcher.job.facts import Checks, NodeFacts, Route
from launcher.node import messages
from launcher.session.node_state import read_facts, read_route
from launcher.transports import bootstrap
from launcher.transports.archives import pack_node


def write_program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


# ---- hello ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_code", [False, True, None], ids=["first", "second", "no directory"])
def test_a_node_says_hello(nodes: Nodes, tmp_path: Path, any_python: str, has_code: bool | None) -> None:
    cache = "/dev/null" if has_code is None else str(tmp_path / "cache")
    for is_kept in [False, True] if has_code else [False]:
        node = nodes.start(python=any_python, env={"XDG_CACHE_HOME": cache})
        assert node.had_code == is_kept
        hello = node.prepare()
    assert Path(f"/proc/{node.supervisor}/exe").samefile(any_python)
    assert [pid for pid, _ in hello.pop("keepers")] == [node.supervisor, node.guardian.pid]
    assert hello == {
        "type": "hello",
        "folder": str(node.folder),
        "sleeps_along": False,
    }
    assert re.fullmatch(rf"{node.tmpdir}/launch-test-\w+", str(node.folder))
    assert stat.S_IMODE(node.folder.stat().st_mode) == 0o700
    assert node.stop() == []
    node.wait_until_gone()
    assert (node.guardian.returncode, node.stderr) == (0, "")


def test_a_python_that_was_built_without_libffi_will_do(nodes: Nodes, tmp_path: Path) -> None:
    code = "import sys; sys.modules['ctypes'] = None; $4"
    python = write_program(tmp_path / "python", f'exec {sys.executable} "$1" "$2" "$3" "{code}" "$5" "$6" "$7"')
    node = nodes.start(python=python)
    node.prepare()
    node.start(shell("echo lives"))
    assert node.wait_for_exits() == {0: (0, None)}
    assert node.stop() == []


def test_a_login_shell_may_print_first(nodes: Nodes) -> None:
    node = nodes.start(rc_file="echo 'Welcome to node1!'; printf 'quota: 5%%'; echo oops >&2; ")
    node.prepare()
    assert node.noise == b"Welcome to node1!\nquota: 5%"
    assert node.stderr == "oops\n"


def test_a_login_shell_may_read_what_comes_before_the_marker(nodes: Nodes) -> None:
    node = nodes.start(rc_file="read answer; echo got $answer; ", typed=b"yes\n")
    node.prepare()
    assert node.noise == b"got yes\n"


def test_a_message_of_a_later_version_is_passed_over(node: Node) -> None:
    node.send("dance", b"payload", steps=3)
    node.start_ready(shell(WAITS))


def test_what_is_no_message_ends_the_run(node: Node) -> None:
    node.start_ready(shell(WAITS))
    node.stdin.write(b"hello?\n")
    report = node.wait_for_guardian()
    assert report == {"type": "census", "left": [], "supervisor": {"code": 1, "signal": None}}
    assert "MalformedMessage: not JSON: b'hello?'" in node.stderr


START = bootstrap.start_code(bootstrap.SUPERVISOR, pack_node(), is_kept=False)


@pytest.mark.parametrize("sent", [b"", b"9 x", START[:9], START[:5000]])
def test_a_launcher_that_hangs_up_early_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    command = bootstrap.loader_command(sys.executable, "nonce", pack_node())
    done = subprocess.run(["/bin/sh", "-c", command], input=sent, capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.stdout.startswith(b"~launch nonce ")
    assert done.stderr == b""


def test_the_folder_goes_where_there_is_room(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start(env={"TMPDIR": str(tmp_path / "missing")})
    node.prepare()
    assert node.folder.parent == Path("/tmp")


def test_the_folder_is_locked_as_long_as_the_run_lasts(node: Node) -> None:
    """systemd-tmpfiles tries this very lock, and passes over a folder of which another has one (dir_cleanup)."""
    node.start_ready(shell(WAITS))
    folder = os.open(node.folder, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert node.stop() == []
        node.hang_up()
        node.wait_until_gone()
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


# ---- facts ----------------------------------------------------------------------------------------------------------


def ask_facts(nodes: Nodes, env: dict[str, str] | None = None, **wanted: object) -> Message:
    node = nodes.start(env=env)
    node.prepare(facts=True, **{"pythons": [], **wanted})
    return node.wait_for(messages.FACTS)


def test_facts_have_the_form_that_the_launcher_reads(nodes: Nodes, any_python: str) -> None:
    node = nodes.start(python=any_python, env={"SSH_CONNECTION": "10.0.0.1 51234 10.0.0.2 22"})
    facts = read_facts(node.import_torchrun(), str(node.folder))
    assert facts.hostname == socket.gethostname()
    assert facts.cpu_count
    assert facts.home == str(node.home)
    assert facts.ssh_address == "10.0.0.2"
    assert ("lo", "127.0.0.1") in facts.addresses
    assert (facts.workdir_found, facts.script_found) == (True, True)
    assert (facts.python, facts.python_source) == (sys.executable, sys.executable)
    assert facts.python_version == platform.python_version()
    assert (facts.torch_version, facts.pythons_tried) == ("2.13.0+stand.in", ())


def test_a_node_sends_every_fact_that_is_read(nodes: Nodes) -> None:
    """A default stands for one that is missing: nobody would see a name that the node spells in another way."""
    message = ask_facts(
        nodes, {"PYTHONPATH": str(STAND_IN)}, pythons=[sys.executable], checks=True, packages=True,
        code={"folder": "", "script": None}, setup={"steps": [], "named": [], "timeout_s": DEADLINE_S},
    )  # fmt: skip
    for form, value in ((NodeFacts, message), (Checks, message["checks"])):
        for field in fields(form):
            rules = getattr(field.type, "__metadata__", ())
            path = next((rule.path for rule in rules if isinstance(rule, SentAs)), field.name)
            part = value
            for step in path.split(".") if NOT_SENT not in rules else ():
                assert step in part, path
                part = part[step]


def test_what_needs_no_torch_looks_for_none(nodes: Nodes) -> None:
    assert ask_facts(nodes)["search"] == {}


@pytest.mark.parametrize(
    ("workdir", "script", "found"),
    [
        ("~", "train.py", (True, True)),
        ("~/missing", "train.py", (False, False)),
        ("~", ".", (True, False)),  # a folder is no script
        ("/nonexistent", sys.executable, (False, True)),
    ],
)
def test_folder_and_script_are_looked_for(
    nodes: Nodes, tmp_path: Path, workdir: str | None, script: str | None, found: tuple[bool, bool]
) -> None:
    (tmp_path / "train.py").touch()
    facts = ask_facts(nodes, {"HOME": str(tmp_path)}, workdir=workdir, script=script)
    assert (facts["workdir_found"], facts["script_found"]) == found


def test_who_asks_for_facts_ends_when_it_is_told(nodes: Nodes, tmp_path: Path) -> None:
    """Not after its tool, which here ends for nobody else."""
    tool = f"trap '' TERM; echo >>{tmp_path}/begun; while kill -0 $PPID; do sleep 0.01; done"
    write_program(tmp_path / "bin" / "nvidia-smi", tool)
    node = nodes.start(env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    node.prepare(facts=True, pythons=[])
    node.wait_until((tmp_path / "begun").exists)
    node.wait_until(lambda: len((tmp_path / "begun").read_text()) == 2)
    assert node.stop(NEVER_S) == []
    assert not node.find(messages.FACTS)


def test_pythons_are_tried_in_order(nodes: Nodes, tmp_path: Path) -> None:
    bare = write_program(tmp_path / "bare", f'exec {sys.executable} -ES "$@"')
    broken = write_program(tmp_path / "broken", "exit 1")
    write_program(tmp_path / "bin" / "python3", f'PYTHONPATH={STAND_IN} exec {sys.executable} "$@"')
    node = nodes.start(env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    search = node.import_torchrun("/nonexistent/python", broken, bare, "python3", sys.executable)["search"]
    assert search == {
        "python": search["python"],
        "version": platform.python_version(),
        "torch": "2.13.0+stand.in",
        **dict.fromkeys(["cuda", "hip", "nccl", "numpy"]),
        "is_warmable": False,
        "candidate": "python3",
        "tried": [["/nonexistent/python", "not found"], [broken, "it did not start"], [bare, "no torch in it"]],
    }


def test_the_login_shell_s_python_is_one_of_them(nodes: Nodes, tmp_path: Path) -> None:
    """It is asked as users see it: an rc file that prints, and sets a PATH that nobody else has."""
    torch = write_program(tmp_path / "conda" / "python3", f'PYTHONPATH={STAND_IN} exec {sys.executable} "$@"')
    login = write_program(tmp_path / "login", f'echo Welcome; export PATH={tmp_path}/conda:$PATH; exec sh -c "$2"')
    search = nodes.start(env={"SHELL": login}).import_torchrun("/nonexistent/python", messages.LOGIN_SHELL)["search"]
    assert (search["candidate"], search["torch"]) == (torch, "2.13.0+stand.in")


def test_a_user_s_module_of_a_library_s_name_is_not_imported(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    (node.tmpdir.parent / "json.py").write_text("raise SystemExit('the wrong json')")
    assert node.import_torchrun()["search"]["torch"] == "2.13.0+stand.in"


# ---- route ----------------------------------------------------------------------------------------------------------


def ask_route(node: Node, **fields: object) -> Message:
    node.send(messages.ROUTE, **fields)
    return node.wait_for(messages.ROUTED)


@pytest.mark.parametrize(
    ("master", "interface", "address", "error"),
    [
        ("127.0.0.1", "lo", "127.0.0.1", None),
        ("127.0.0.9", "lo", "127.0.0.1", None),
        ("255.255.255.255", None, None, "Permission denied"),
    ],
)
def test_the_route_to_node_0(node: Node, master: str, interface: str, address: str, error: str) -> None:
    answer = ask_route(node, master=master)
    assert read_route(answer) == Route(interface, address, error=error)


def test_nothing_starts_where_the_folder_of_the_run_can_not_be_made(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    prepare = messages.encode(
        messages.PREPARE, version=1, run="no/such/folder", mark=node.mark, silence_s=NEVER_S, stop_timeout_s=1, env={}
    )
    processes = [{"rank": 0, "argv": ["touch", str(tmp_path / "started")], "env": {}}]
    start = messages.encode(messages.START, processes=processes, cwd=None, is_short=True)
    node.stdin.write(prepare + start)  # one piece, as `launch exec` sends them
    assert node.wait_for(messages.FAILED)["text"].startswith("prepare: ")
    node.wait_until_gone()
    assert not (tmp_path / "started").exists()
