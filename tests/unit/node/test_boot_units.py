"""What starts a program after a boot: a unit where the user lingers, else a line in the crontab. With stand-ins."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.node import boot_units

pytestmark = pytest.mark.linux

NAME = "20261120-091233.1"
OTHER = b"# my jobs\nMAILTO=ann\n*/5 * * * * /usr/bin/true 100\\%\r\n@reboot run # launch me\n" + b"# \xff\n"
# Each keeps what it is told in the directory where it is.
LOGINCTL = "#!/bin/sh\necho Linger=yes\n"
SYSTEMCTL = """#!/bin/sh
echo "$XDG_RUNTIME_DIR $*" >>"${0%/*}/asked"
units=$HOME/.config/systemd/user
mkdir -p "$units/default.target.wants" && ln -s "$units/$4" "$units/default.target.wants/$4"
"""
CRONTAB = """#!/bin/sh
cd "${0%/*}" || exit
case $1 in
-l) [ -e crontab.text ] || { echo 'no crontab for ann' >&2; exit 1; }; cat crontab.text;;
-r) rm crontab.text;;
-) cat >crontab.text;;
esac
"""
REFUSES = """#!/bin/sh
echo 'You (ann) are not allowed to use this program (crontab)' >&2
echo 'See crontab(1) for more information' >&2
exit 1
"""
Tools = Callable[..., Path]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Give the node these programs and no others, an empty home directory, and a running cron."""
    folder, home = tmp_path / "bin", tmp_path / "home"
    folder.mkdir()
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(boot_units, "_TOOLS", str(folder))
    monkeypatch.setattr(boot_units, "_DAEMONS", (Path("/proc/self/comm").read_text().strip(),))

    def give(**scripts: str) -> Path:
        for name in ("cat", "mkdir", "ln", "rm"):
            (folder / name).symlink_to(f"/bin/{name}")
        for name, script in scripts.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return home

    return give


def program(home: Path, name: str = NAME) -> Path:
    return home / ".local" / "state" / "launch" / "agents" / f"{name}.py"


def unit(home: Path, name: str = NAME) -> Path:
    return home / ".config" / "systemd" / "user" / f"launch-{name}.service"


def files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if not path.is_dir())


def test_a_unit_where_the_user_lingers(tools: Tools, tmp_path: Path) -> None:
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL, crontab=REFUSES)
    umask = os.umask(0o002)
    try:
        assert boot_units.install(NAME, "print('started')\n") == ""
    finally:
        os.umask(umask)
    asked = (tmp_path / "bin" / "asked").read_text()
    assert asked == f"/run/user/{os.geteuid()} --user --quiet enable launch-{NAME}.service\n"
    machine = Path("/etc/machine-id").read_text().strip() if Path("/etc/machine-id").exists() else ""
    assert unit(home).read_text() == (
        "# Made by launch --survive-reboots, which removes it when the run has ended.\n"
        "[Unit]\n"
        "Description=launch 20261120-091233.1\n"
        f"ConditionHost={machine or socket.gethostname()}\n"
        "StartLimitIntervalSec=3600\n"
        "StartLimitBurst=5\n"
        "\n"
        "[Service]\n"
        f'ExecStart="{sys.executable}" "-X" "utf8" "-IS" "{program(home)}"\n'
        "OOMPolicy=continue\n"
        "TasksMax=infinity\n"
        "Restart=on-abnormal\n"
        "RestartSec=5\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    modes = {path: path.stat().st_mode & 0o777 for path in (unit(home), program(home), program(home).parent)}
    assert list(modes.values()) == [0o644, 0o600, 0o700]
    assert not [path for path in unit(home).parents if path.is_relative_to(home) and path.stat().st_mode & 0o077]
    assert boot_units.find() == [NAME]
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-IS", program(home)], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "started\n"
    assert boot_units.remove(NAME) == ""
    assert (files(home), boot_units.find()) == (["crontab.lock"], [])


def test_a_line_where_the_user_does_not(tools: Tools, tmp_path: Path) -> None:
    home = tools(loginctl=LOGINCTL.replace("yes", "no"), systemctl=REFUSES, crontab=CRONTAB)
    crontab = tmp_path / "bin" / "crontab.text"
    crontab.write_bytes(OTHER)
    assert boot_units.install(NAME, "") == ""
    assert boot_units.install("20261120-091233.2", "") == ""
    line = f"@reboot {sys.executable} -X utf8 -IS {program(home)} # launch {NAME}\n".encode()
    assert crontab.read_bytes() == OTHER + line + line.replace(b"33.1", b"33.2")
    assert boot_units.install(NAME, "") == "", "it is there once"
    assert crontab.read_bytes().count(b"33.1\n") == 1
    assert boot_units.find() == [NAME, "20261120-091233.2"]
    assert [boot_units.remove(name) for name in (NAME, "20261120-091233.2", NAME)] == [""] * 3
    assert crontab.read_bytes() == OTHER
    assert files(home) == ["crontab.lock"]


def test_a_line_that_can_t_be_removed_is_told(tools: Tools, tmp_path: Path) -> None:
    tools(crontab=CRONTAB)
    assert boot_units.install(NAME, "") == ""
    (tmp_path / "bin" / "crontab").write_text(REFUSES)
    assert boot_units.remove(NAME) == "crontab: You (ann) are not allowed to use this program (crontab)"


def test_a_crontab_that_was_empty_is_removed(tools: Tools, tmp_path: Path) -> None:
    tools(crontab=CRONTAB)
    assert boot_units.install(NAME, "") == ""
    assert boot_units.remove(NAME) == ""
    assert not (tmp_path / "bin" / "crontab.text").exists()


@pytest.mark.parametrize("scripts, why", [
    ({}, "no systemd, and no crontab program"),
    ({"crontab": REFUSES}, "no systemd, and crontab: You (ann) are not allowed to use this program (crontab)"),
    (
        {"loginctl": "#!/bin/sh\necho 'System has not been booted with systemd as init system' >&2; exit 1"},
        "no systemd, and no crontab program",
    ),
    (
        {"loginctl": "#!/bin/sh\necho 'User ID 7 is not logged in or lingering' >&2; exit 1", "crontab": REFUSES},
        "loginctl: User ID 7 is not logged in or lingering, and crontab: You (ann) are not allowed to use this program "
        "(crontab)",
    ),
    (
        {"loginctl": LOGINCTL, "systemctl": "#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2; exit 1"},
        "systemctl --user: Failed to connect to bus: No medium found, and no crontab program",
    ),
])  # fmt: skip
def test_where_it_is_not_possible(tools: Tools, scripts: dict[str, str], why: str) -> None:
    home = tools(**scripts)
    assert boot_units.install(NAME, "secret") == why
    assert files(home) in ([], ["crontab.lock"]), "nothing stays"
    assert boot_units.remove(NAME) == ""


@pytest.mark.parametrize("level", [".config", ".config/systemd"])
def test_no_unit_is_put_where_others_could_replace_it(tools: Tools, level: str) -> None:
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    (home / level).mkdir(parents=True)
    (home / level).chmod(0o777)
    why = boot_units.install(NAME, "secret")
    begin = f"can't write {home / level}: others may write to it (mode 0777), and could replace what is there"
    assert why == f"{begin}, and no crontab program"
    assert files(home) == ["crontab.lock"]


def test_a_crontab_without_a_daemon(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(crontab=CRONTAB)
    monkeypatch.setattr(boot_units, "_DAEMONS", ())
    assert boot_units.install(NAME, "") == "no systemd, and no cron daemon"


def test_a_crontab_that_can_t_be_read_is_not_replaced(tools: Tools, tmp_path: Path) -> None:
    """A failure of crontab -l isn't an empty crontab."""
    home = tools(crontab=CRONTAB.replace("-l)", "-l) echo 'I/O error' >&2; exit 1;"))
    crontab = tmp_path / "bin" / "crontab.text"
    crontab.write_bytes(OTHER)
    assert boot_units.install(NAME, "") == "no systemd, and crontab: I/O error"
    assert crontab.read_bytes() == OTHER
    assert not program(home).exists()


def test_a_home_directory_of_all_nodes(tools: Tools) -> None:
    """Units and files of other nodes are there too: they aren't this node's to remove, nor does it run them."""
    home = tools(loginctl=LOGINCTL, systemctl=SYSTEMCTL)
    assert boot_units.install(NAME, "print('started')") == ""
    text = program(home).read_text()
    here = repr(socket.gethostname())
    assert here in text
    for other, machine in (("20261120-091233.2", "0" * 32), ("20261120-091233.3", "")):
        program(home, other).write_text(text.replace(here, "'g2'").replace(f"# {socket.gethostname()}:", "# g2:"))
        lines = unit(home).read_text().splitlines()
        lines[3] = f"ConditionHost={machine}" if machine else lines[3]  # the other was made from the same image
        unit(home, other).write_text("\n".join(lines))
    assert boot_units.find() == [NAME]
    alien = program(home, "20261120-091233.3").read_text().replace("range(60)", "range(0)")
    done = subprocess.run([sys.executable, "-c", alien], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_paths_with_unusual_characters(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / 'a "b" 5%'
    state.mkdir(mode=0o700)
    tools(crontab=CRONTAB)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert boot_units.install(NAME, "print('started')") == ""
    line = (tmp_path / "bin" / "crontab.text").read_text()
    command = line.removeprefix("@reboot ").replace("\\%", "%")  # as cron has it
    monkeypatch.undo()
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout == "started\n"
    path = f"{state}/launch/agents/{NAME}.py"
    quoted = path.replace('"', '\\"').replace("%", "%%")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert f'"-IS" "{quoted}"\n' in boot_units.unit_text(NAME)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/$HOME")
    with pytest.raises(ValueError, match=rf"^a unit of systemd can't name '/home/\$HOME/launch/agents/{NAME}.py'$"):
        boot_units.unit_text(NAME)


def test_a_state_directory_that_others_may_change(tools: Tools, tmp_path: Path) -> None:
    home = tools(crontab=CRONTAB)
    home.chmod(0o777)
    why = f"can't write {home}: others may write to it (mode 0777), and could replace what is there"
    assert boot_units.install(NAME, "") == why
    assert not (tmp_path / "bin" / "crontab.text").exists()


# ---- the lock, by which a program runs once -------------------------------------------------------------------------


def test_one_program_of_a_name_runs(tools: Tools) -> None:
    tools()
    first = boot_units.take_lock(NAME)
    assert first is not None
    assert boot_units.is_running(NAME)
    assert boot_units.take_lock(NAME) is None
    other = boot_units.take_lock("20261120-091233.2")
    assert other is not None
    first.release()
    first.release()
    assert not boot_units.is_running(NAME)
    assert [path.name for path in Path(boot_units.find_lock(NAME)).parent.iterdir()] == ["20261120-091233.2.lock"]
    again = boot_units.take_lock(NAME)
    assert again is not None
    assert boot_units.is_running(NAME)
    again.release()
    other.release()


def test_the_kernel_releases_the_lock_of_one_that_is_killed(tools: Tools) -> None:
    tools()
    code = f"import os; from launcher.node import boot_units; boot_units.take_lock({NAME!r}); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert Path(boot_units.find_lock(NAME)).exists()
    assert not boot_units.is_running(NAME)
    lock = boot_units.take_lock(NAME)
    assert lock is not None
    lock.release()


def test_old_locks_go_unless_they_are_held(tools: Tools) -> None:
    tools()
    held = boot_units.take_lock(NAME)
    assert held is not None
    folder = Path(boot_units.find_lock(NAME)).parent
    for name in ("old.lock", "new.lock", "old.py"):
        (folder / name).touch()
    for name in ("old.lock", "old.py", f"{NAME}.lock"):
        os.utime(folder / name, (0, 0))
    other = boot_units.take_lock("20261120-091233.2")
    assert other is not None
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{NAME}.lock", "20261120-091233.2.lock", "new.lock", "old.py"]
    held.release()
    other.release()


def test_without_a_disk_that_takes_a_lock_a_program_starts_all_the_same(tools: Tools) -> None:
    home = tools().parent / "home"
    (home / ".local").write_text("no directory")
    lock = boot_units.take_lock(NAME)
    assert lock is not None
    lock.release()
    assert not boot_units.is_running(NAME)


def test_a_link_is_no_lock(tools: Tools, tmp_path: Path) -> None:
    tools()
    lock = boot_units.take_lock(NAME)
    assert lock is not None
    lock.release()
    path = Path(boot_units.find_lock(NAME))
    path.symlink_to(tmp_path / "elsewhere")
    assert boot_units.take_lock(NAME) is not None
    assert path.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
