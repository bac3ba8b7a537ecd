"""Which files of known_hosts ssh_config names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.transports.ssh.known_hosts import find_files, find_unclear
from launcher.transports.ssh.openssh_config import read_answer

# What stands in ssh_config, and the files that it names; None: `ssh -G` doesn't show clearly which.
VALUES = [
    ("/kh", ["/kh"]),
    ("/kh ~/kh2", ["/kh", "~/kh2"]),
    ('"/kh" "/kh2"', ["/kh", "/kh2"]),
    ('"/a b/kh"', None),
    ("kh", None),
    ("/%h/kh", ["/e1.example/kh"]),
    ("/%C/kh", None),
    ("none", []),
]


@pytest.mark.parametrize(("value", "files"), VALUES)
def test_which_files_ssh_names(tmp_path: Path, value: str, files: list[str] | None) -> None:
    """As the real ssh hands them on; with a token that depends on its version, it may have replaced that itself."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh: apt-get install openssh-client")
    config = tmp_path / "config"
    config.write_text(f"Host e1\n  HostName e1.example\n  UserKnownHostsFile {value}\n  GlobalKnownHostsFile /all\n")
    argv = ["ssh", "-F", str(config), "-G", "e1"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.splitlines()
    found = read_answer("e1", said)
    if files is None:
        assert find_unclear(found.settings) or ("%C" in value and "%" not in found.settings["userknownhostsfile"])
    else:
        paths = [Path(file).expanduser() for file in files]
        assert (find_unclear(found.settings), find_files(found.settings)) == ("", [*paths, Path("/all")])
        assert found.place.known_file == (str(paths[0]) if paths else None)
