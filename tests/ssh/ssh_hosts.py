"""Two SSH hosts on loopback: a real OpenSSH sshd each, unprivileged, and all that runs below them.

Every process below an sshd has its host's TMPDIR in its environment, so what a run leaves behind is found whatever
the launcher thinks of it: processes by that variable, folders because TMPDIR must be empty after a test.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machines.patience import DEADLINE_S
from machines.ports import free_port
from machines.processes import all_pids, read_name, read_parent, read_proc, send_signal, wait_until

SSHD_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin"

# Both hosts share the cores of this machine: threads of torch that wait for others must not spin.
SSHD_CONFIG = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {keys}
SetEnv TMPDIR={tmpdir} HOME={home} OMP_WAIT_POLICY=passive
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
LogLevel VERBOSE
"""

CLIENT_CONFIG = {
    "User": getpass.getuser(),
    "IdentitiesOnly": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "none",
    "KexAlgorithms": "curve25519-sha256",  # OpenSSH's first choice takes seven times the CPU
}


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    parent: int
    argv: tuple[str, ...]
    env: frozenset[str]

    @property
    def is_ours(self) -> bool:
        """Whether it is of a run, and not its guardian or supervisor, its login shell or sshd."""
        return any(setting.startswith("LAUNCH_MARK=") for setting in self.env)

    @property
    def is_keeper(self) -> bool:
        """Whether it is a guardian or a supervisor: both still show the loader's command line."""
        return not self.is_ours and any("~launch" in word for word in self.argv)

    def kill(self, number: int = signal.SIGKILL) -> None:
        send_signal(self.pid, number)


@dataclass
class SshHost:
    """One sshd on an address of its own."""

    name: str
    address: str
    folder: Path
    port: int = 0
    server: subprocess.Popen[bytes] | None = None

    @property
    def tmpdir(self) -> Path:
        return self.folder / "tmp"

    @property
    def public_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def known_name(self) -> str:
        """Return the name by which known_hosts has its key, for another server that has it too."""
        return f"[{self.address}]:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def start(self, keys: Path) -> None:
        for folder in (self.folder, self.tmpdir, self.folder / "home"):
            folder.mkdir()
        make_key(self.folder / "host_key")
        self.port = free_port(self.address)
        config = self.folder / "sshd_config"
        config.write_text(
            SSHD_CONFIG.format(
                address=self.address, port=self.port, folder=self.folder, keys=keys, tmpdir=self.tmpdir,
                home=self.folder / "home",
            )
        )  # fmt: skip
        sshd = shutil.which("sshd", path=SSHD_PATH)
        assert sshd is not None
        with (self.folder / "sshd.log").open("wb") as log:
            # sshd starts itself anew for each connection, so it wants its full path.
            self.server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log)
        assert wait_until(lambda: f"port {self.port}" in self.log), self.log

    def stop(self) -> None:
        """End the sshd and all that runs below it."""
        if self.server is not None:
            for process in self.processes():
                process.kill()
            self.server.kill()
            self.server.wait()

    # ---- what runs here -----------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Return all that sshd started, at whatever depth, and that is alive."""
        mark = f"TMPDIR={self.tmpdir}"
        return [process for process in read_processes() if mark in process.env]

    def ranks(self) -> list[Process]:
        """Return the processes of a run: its ranks, torchrun and their children."""
        return [process for process in self.processes() if process.is_ours]

    def sessions(self) -> list[int]:
        """Return the ids of sshd's own processes, one or two for each connection."""
        assert self.server is not None
        parents = {pid: read_parent(pid) for pid in all_pids() if read_name(pid).startswith("sshd")}
        found = [self.server.pid]
        for pid in found:  # grows meanwhile
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]


@dataclass
class SshHosts:
    """The hosts of a test session, and the client's side of them."""

    folder: Path
    hosts: tuple[SshHost, ...] = ()

    def start(self) -> None:
        self.own_tmpdir.mkdir()
        keys = self.folder / "authorized_keys"
        keys.write_text(make_key(self.folder / "id"))
        self.hosts = (
            SshHost("node1", "127.0.0.1", self.folder / "node1"),
            SshHost("node2", "127.0.0.2", self.folder / "node2"),
        )
        for host in self.hosts:
            host.start(keys)
        self.known_hosts.write_text("".join(self.known_line(host, host.public_key) for host in self.hosts))

    def stop(self) -> None:
        for host in self.hosts:
            host.stop()

    def __iter__(self) -> Iterator[SshHost]:
        return iter(self.hosts)

    def __getitem__(self, name: str) -> SshHost:
        return next(host for host in self.hosts if host.name == name)

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @staticmethod
    def known_line(host: SshHost, key: str) -> str:
        return f"[{host.address}]:{host.port} {key}\n"

    def write_config(self, path: Path, **changes: dict[str, object]) -> Path:
        """Write an ssh_config for all hosts; `node2={"Port": 1}` changes it for one of them, or adds another name."""
        places = {host.name: {"HostName": host.address, "Port": host.port} for host in self.hosts}
        blocks = []
        for name in dict.fromkeys([*places, *changes]):
            settings = {
                **places.get(name, {}),
                "IdentityFile": self.folder / "id",
                "UserKnownHostsFile": self.known_hosts,
                **CLIENT_CONFIG,
                **changes.get(name, {}),
            }
            blocks += [f"Host {name}", *(f"  {key} {value}" for key, value in settings.items())]
        path.write_text("\n".join(blocks) + "\n")
        return path

    def add_login(self, key: Path, rc_file: str) -> None:
        """Let `key` in as well, by way of a shell script that stands for the login shell's rc file."""
        script = key.with_suffix(".rc")
        script.write_text(f'{rc_file}\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(f'command="/bin/sh {script}" {make_key(key)}')

    @property
    def tmpdirs(self) -> list[Path]:
        """Where runs may leave something: on each host, and where the launcher itself runs."""
        return [*(host.tmpdir for host in self.hosts), self.own_tmpdir]

    @property
    def own_tmpdir(self) -> Path:
        return self.folder / "tmp"

    def processes(self) -> list[Process]:
        """Return all that runs on the hosts, guardians and supervisors too."""
        return [process for host in self.hosts for process in host.processes()]

    def all_processes(self) -> list[Process]:
        """Return that, and what the launcher has started; of launchers, those that weren't forked."""
        marks = {f"TMPDIR={tmpdir}" for tmpdir in self.tmpdirs}
        return [process for process in read_processes() if marks & process.env]

    def ranks(self) -> list[Process]:
        return [process for host in self.hosts for process in host.ranks()]


@contextlib.contextmanager
def another_sshd(host: SshHost, folder: Path, *lines: str, port: int | None = None) -> Iterator[dict[str, object]]:
    """Run another sshd of a host, with these lines in its sshd_config; yield what reaches it."""
    port = port or free_port(host.address)
    config = (host.folder / "sshd_config").read_text()
    config = config.replace(f":{host.port}\n", f":{port}\n").replace("/sshd.pid", "/other.pid")
    (folder / "sshd_config").write_text("\n".join([*lines, config]))  # the first value counts
    sshd = shutil.which("sshd", path=SSHD_PATH)
    assert sshd is not None
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        assert wait_until(lambda: f"port {port}" in (folder / "sshd.log").read_text())
        yield {"Port": port, "HostKeyAlias": host.known_name}
    finally:
        server.kill()
        server.wait()


def find_obstacle() -> str | None:
    """Say what is missing for these hosts and what to do about it, or None."""
    if shutil.which("sshd", path=SSHD_PATH) is None:
        return "no sshd: apt-get install openssh-server"
    if shutil.which("ssh-keygen") is None:
        return "no ssh-keygen: apt-get install openssh-client"
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it when it is root
        shadow = Path("/etc/shadow").read_text().splitlines()
        if any(line.startswith("root:!") for line in shadow):
            return "root's password is locked, so sshd without PAM lets nobody in: usermod --password '*' root"
    return None


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """Make a key pair and return its public line."""
    bits = ["-b", "2048"] if kind == "rsa" else []
    # One round: a passphrase is soon tried.
    argv = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-a", "1", "-f", str(path)]
    subprocess.run(argv, check=True, timeout=DEADLINE_S)
    return path.with_name(f"{path.name}.pub").read_text()


@contextlib.contextmanager
def running_agent(place: Path) -> Iterator[None]:
    """Run an ssh-agent whose socket is `place`, which is there a moment before the agent listens."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: _is_listening(place))
        yield
    finally:
        agent.terminate()
        agent.wait()


def _is_listening(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(place)) == 0


def read_processes() -> Iterator[Process]:
    """Yield every process that is alive and may be looked into; a zombie has no environment left."""
    for pid in all_pids():
        env, argv = read_proc(pid, "environ"), read_proc(pid, "cmdline")
        if env and argv:  # nothing if it has ended between the two looks
            yield Process(pid, read_parent(pid), tuple(argv.split("\0")), frozenset(env.split("\0")))
