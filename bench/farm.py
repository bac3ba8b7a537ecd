"""Many SSH hosts on loopback: one real OpenSSH sshd per host, 127.0.0.1 to 127.0.0.N, all on one port.

Their home directory is empty, so that the user's rc files don't affect the measurement.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
START_TIMEOUT_S = 30.0
# That of most sshd, behind a directory of the farm for programs that its hosts have instead of the machine's.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SSHD_CONFIG = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/id.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100:30:200
SetEnv HOME={folder} XDG_CACHE_HOME={folder}/cache/{address} PATH={folder}/bin:{path}
"""


@dataclass(frozen=True, slots=True)
class Farm:
    """The hosts, and the ssh_config for logging in to them."""

    names: list[str]
    port: int
    ssh_config: Path

    def ssh_environment(self) -> dict[str, str]:
        """Return the environment with which pdsh reaches the hosts."""
        return {**os.environ, "PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": f"-F {self.ssh_config}"}


@contextlib.contextmanager
def farm(count: int) -> Iterator[Farm]:
    """Start `count` sshd, yield how to reach them, and stop them."""
    folder = Path(tempfile.mkdtemp(prefix="bench-farm-"))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("host_key", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd as root needs its chroot directory
        names = [f"127.0.0.{index + 1}" for index in range(count)]
        port = _free_port()
        for name in names:
            config = folder / f"sshd_{name}"
            config.write_text(_SSHD_CONFIG.format(address=name, port=port, folder=folder, path=_PATH))
            servers.append(subprocess.Popen([SSHD, "-D", "-f", config], stderr=subprocess.DEVNULL))
        for name in names:
            _wait_for((name, port))
        yield Farm(names, port, _write_client_files(folder, names, port))
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()
        shutil.rmtree(folder)


def _write_client_files(folder: Path, names: list[str], port: int) -> Path:
    key = (folder / "host_key.pub").read_text().strip()
    (folder / "known_hosts").write_text("".join(f"[{name}]:{port} {key}\n" for name in names))
    path = folder / "ssh_config"
    path.write_text(
        f"Host 127.0.0.*\n  User {getpass.getuser()}\n  Port {port}\n  IdentityFile {folder}/id\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        "  StrictHostKeyChecking yes\n"
    )
    return path


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(place: tuple[str, int]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _listens(place):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no sshd on {place[0]}:{place[1]}")
        time.sleep(0.02)


def _listens(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, 1).close()
    except OSError:
        return False
    return True
