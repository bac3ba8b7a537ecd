"""`launch --sync` on hosts with networks and home directories of their own: what runs there, and what breaks it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster, Host
from machines.processes import wait_until
from machines.repositories import make_repository

from launcher.errors import EXIT_PREFLIGHT

PYTHON = ("--nproc", "1", "--no-python", sys.executable)
CACHE_FIX = "fix: free space there, or choose another directory there with --env XDG_CACHE_HOME=DIR"
HOSTS = ("node1", "node2")


@pytest.fixture(autouse=True)
def _no_code_is_there(cluster: Cluster) -> Iterator[None]:
    yield
    for host in cluster:
        for path in cache_of(host).glob("*"):
            if path.name != "code":  # of launch itself, which each host would have to compile again
                shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def proj(launch: Launch) -> Path:
    """Return a repository; its name and those of its files are not easy ones."""
    root = make_repository(launch.folder / "my pröj: 1", ignore="/data\n/outputs\n*.pyc\n")
    (root / "train.py").write_text("raise SystemExit('an old version')\n")
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)
    (root / "helper.py").write_text("WORD = 'untracked'\n")
    (root / "train.py").write_text(
        "import os, helper\nprint(helper.WORD, __file__, os.getcwd(), *os.listdir('data'))\n"
    )
    (root / "a\nb 'c'").write_text("")
    (root / "data").mkdir()
    (root / "data" / "corpus").write_text("")
    return root


def cache_of(host: Host) -> Path:
    return host.folder / "home" / ".cache" / "launch"


def find_code(lines: Sequence[str]) -> str:
    """Return what was said about the code, without its hash."""
    (line,) = [line for line in lines if line.startswith("launch: code ")]
    return re.sub(r"(?<=code )\w{7}", "HASH", line)


# ---- runs -----------------------------------------------------------------------------------------------------------


def test_what_is_here_runs_there(launch: Launch, cluster: Cluster, proj: Path) -> None:
    """With changes that aren't committed; a second run sends nothing."""
    words = (f"--sync={proj}", *PYTHON, "train.py")
    done = launch.start(*words, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    trees = {name: cache_of(cluster[name]) / "trees" for name in HOSTS}
    roots = {name: next(trees[name].iterdir()) / "my pröj_ 1" for name in HOSTS}
    assert sorted(done.lines) == [
        f"[{name}:{rank}] untracked {roots[name]}/train.py {roots[name]} corpus" for rank, name in enumerate(HOSTS)
    ]
    size = sum((proj / name).stat().st_size for name in ("train.py", "helper.py", ".gitignore"))
    assert find_code(done.words) == (
        f"launch: code HASH: 4 files, {size} bytes (all, {sent(done.words)} sent); left out: data/ (git-ignored)"
    )
    assert (roots["node1"] / "data").readlink() == proj / "data"
    assert not (roots["node1"] / ".git").exists()
    record = done.record["code"] if "code" in done.record else done.record["plan"]["code"]
    assert record["files"] == 4
    again = launch.start(*words, hosts="node[1-2]").finish()
    assert "(nothing sent)" in find_code(again.words)


def test_the_cause_names_the_file_here(launch: Launch, proj: Path) -> None:
    (proj / "train.py").write_text("raise ValueError('no data')\n")
    done = launch.start(f"--sync={proj}", *PYTHON, "train.py", hosts="node1").finish()
    (place,) = [line for line in done.words if "train.py" in line]
    assert place == f'    File "{proj}/train.py", line 1, in <module>'


def sent(lines: Sequence[str]) -> str:
    found = re.search(r"([0-9.]+ k?B|\d+ bytes) sent", find_code(lines))
    assert found is not None
    return found[1]


DAMAGES = """\
import os, sys, time
print("attempt", os.environ["LAUNCH_ATTEMPT"], flush=True)
if os.environ["LAUNCH_ATTEMPT"] == "0":
    if os.environ["RANK"] == "0":
        open(READY, "w").close()
        time.sleep(300)
    while not os.path.exists(READY):  # the end of this rank ends the other one, which may not have written yet
        time.sleep(0.1)
    open(__file__, "w").write("print('damaged')")
    open(os.path.dirname(__file__) + "/random.py", "w").close()
    sys.exit(3)
"""


def test_code_that_a_rank_has_damaged_is_replaced_before_the_restart(
    launch: Launch, proj: Path, tmp_path: Path
) -> None:
    (proj / "train.py").write_text(f"READY = {str(tmp_path / 'ready')!r}\n{DAMAGES}")
    words = ("--restarts", "1", f"--sync={proj}", *PYTHON, "train.py")
    done = launch.start(*words, hosts="node[1-2]").finish()
    assert done.exit_code == 0, done
    prefixes = ("[node1:0] attempt", "[node2:1] attempt")
    assert sorted(done.lines) == [f"{prefix} {attempt}" for prefix in prefixes for attempt in (0, 1)]
    *told, written = [line for line in done.stderr.splitlines() if line.startswith("  node2: ")]
    assert "the run wrote random.py and train.py.replaced-" in written
    assert told == [
        "  node2: train.py had changed in the run's directory, and was restored "
        "(what was there is kept as NAME.replaced-...)",
    ], done


def test_a_run_that_another_host_controls_gets_its_code_from_there(
    launch: Launch, cluster: Cluster, proj: Path
) -> None:
    (proj / "large").write_bytes(os.urandom(3 << 20))
    words = ("--detach", "--controller", "node3", f"--sync={proj}", *PYTHON, "train.py")
    done = launch.start(*words, hosts="node[1-2]").wait()
    assert done.exit_code == 0, done
    wait_until(lambda: not cluster.processes())
    logs = cluster["node3"].folder / "home/.local/state/launch/logs/latest"
    (log,) = [path.read_text() for path in logs.glob("node_0.log")]
    assert "untracked" in log and f"{cache_of(cluster['node1'])}/trees/" in log
    trees = [path.name for path in (cache_of(cluster["node1"]) / "trees").iterdir()]
    assert len(trees) == 1 and not trees[0].startswith("sync-")
    shutil.rmtree(cluster["node3"].folder / "home/.local", ignore_errors=True)


# ---- what breaks it -------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full(launch: Launch, cluster: Cluster, proj: Path) -> None:
    """The host is named with the reason and what to do; nothing is left."""
    (proj / "large").write_bytes(os.urandom(3 << 20))
    cache = launch.folder / "cache"
    cache.mkdir()
    cluster["node2"].mount(str(cache), "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    words = ("--env", f"XDG_CACHE_HOME={cache}", f"--sync={proj}", *PYTHON, "train.py")
    done = launch.start(*words, hosts="node[1-2]").finish()
    assert (done.exit_code, done.stdout) == (EXIT_PREFLIGHT, ""), done
    where = next(line for line in done.words if line.startswith("  node2: "))
    assert re.fullmatch(rf"  node2: can't keep the code in {cache}\S*: No space left on device", where), done
    assert done.words[done.words.index(where) + 1].strip() == CACHE_FIX
    inside = [*cluster["node2"].enter(cache), "find", ".", "-size", "+1000k"]
    assert subprocess.run(inside, capture_output=True, text=True, check=True).stdout == ""
    assert subprocess.run([*inside[:-4], "ls", "-A", "launch/trees"], capture_output=True, check=True).stdout == b""


def test_the_code_is_sent_and_removed(launch: Launch, cluster: Cluster, proj: Path) -> None:
    first = launch.start(f"--sync={proj}", *PYTHON, "train.py", hosts="node[1-2]").finish()
    assert first.exit_code == 0, first
    trees = {name: cache_of(cluster[name]) / "trees" for name in HOSTS}
    next(trees["node2"].rglob("helper.py")).write_text("WORD = 'changed there'\n")
    dry = launch.clean("--code", "--dry-run", hosts="node[1-2]")
    assert (dry.exit_code, dry.words[0].partition(", ")[0]) == (
        0,
        "launch: would remove the code of 2 runs on 2 hosts",
    ), dry
    done = launch.clean("--code", hosts="node[1-2]")
    assert (done.exit_code, done.words[0].partition(", ")[0]) == (0, "launch: removed the code of 2 runs on 2 hosts"), (
        done
    )
    assert [path for path in cache_of(cluster["node1"]).rglob("*") if path.is_file()] == []
    assert len(done.words) == 2 and done.words[1].endswith(", where files are that were not sent"), done
    kept = [path.name for path in cache_of(cluster["node2"]).rglob("*.py")]
    assert kept == ["helper.py"], "what somebody has changed is never removed"
