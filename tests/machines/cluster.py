"""Test hosts on one Linux machine, each with an sshd on port 22, a network and a process tree, and their faults.

    this machine -- bridge in a network namespace of its own -- one host, another, ...

No namespace has a name; one process holds each, and the kernel kills that process when the test run dies (PDEATHSIG).
So nothing is left behind, however a test run ends. All hosts see this machine's files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from machines.files import CLIENT_CONFIG, FAKE_ANSWERS, FAKE_NVIDIA_SMI, HOST_SCRIPT, SSHD_CONFIG, SWITCH_SCRIPT
from machines.processes import (
    CENSUS_POLL_S,
    POLL_S,
    Process,
    describe,
    list_pids,
    read_name,
    read_namespace,
    read_parent,
    read_state,
    send_signal,
    wait_until,
)

TOOLS = {
    "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux",
    "ssh-keygen": "openssh-client", "sshd": "openssh-server",
}  # fmt: skip
TOOL_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin"
RANGES = [f"10.{number}" for number in range(88, 120)]  # a cluster takes the first that is unused on this machine
SSH_PORT = 22

NAMESPACES = {"mount": "mnt", "net": "net", "uts": "uts", "pid": "pid_for_children"}
HELD = ("setpriv", "--pdeathsig", "KILL", "unshare")


def find_obstacle() -> str | None:
    """Return what a cluster needs and this machine lacks, with the remedy, or None."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root: run these tests as root"
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool, path=TOOL_PATH) is None]
    if missing:
        return f"tools are missing: apt-get install {' '.join(dict.fromkeys(missing))}"
    probe = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "ip", "link", "add", "type", "veth"]
    done = subprocess.run(probe, env=_env(), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network, UTS, PID or mount namespaces (docker: run --privileged): {done.stderr.strip()}"
    return None


@dataclass
class Host:
    """One test host; its sshd is the first process of its PID namespace."""

    name: str
    address: str
    interface: str
    folder: Path
    switch: int  # the process that holds the bridge
    services: str = ":"  # shell lines that start services besides sshd
    has_cable: bool = True
    _holder: subprocess.Popen[str] | None = None
    _namespace: str = "none"  # UTS: a container on the host has a PID namespace of its own
    _has_rules: bool = False  # for packets
    _stopped: set[int] = field(default_factory=set)
    _mounts: list[str] = field(default_factory=list)

    @property
    def tmpdir(self) -> Path:
        return self.folder / "tmp"

    def power_on(self) -> None:
        """Boot with an empty TMPDIR; sshd may not listen yet."""
        shutil.rmtree(self.tmpdir, ignore_errors=True)
        self.tmpdir.mkdir()
        sshd = shutil.which("sshd", path=TOOL_PATH)
        first_pid = 1000 + 400 * int(self.address.split(".")[-1])  # real hosts seldom have the same process ids
        script = HOST_SCRIPT.format(sshd=sshd, first_pid=first_pid, **vars(self))
        namespaces = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._holder = _start([*HELD, *namespaces, "sh", "-euc", script], self.folder / "log")
        assert wait_until(lambda: self._read_namespace() != read_namespace(os.getpid(), "uts"))
        self._namespace = self._read_namespace()
        # The MAC address survives a reboot, as a real card's does: other hosts cache it for a minute.
        mac = "02:00:" + ":".join(f"{int(number):02x}" for number in self.address.split("."))
        configure_network(
            self.switch,
            f"link add {self.name} type veth peer name {self.interface} address {mac} netns {self._holder.pid}",
            f"link set {self.name} master bridge up",
        )
        self.has_cable = True
        assert self._holder.stdin is not None
        self._holder.stdin.write("go\n")
        self._holder.stdin.close()

    def _read_namespace(self) -> str:
        assert self._holder is not None
        return read_namespace(self._holder.pid, "uts")

    def wait_for_sshd(self) -> None:
        """Wait until sshd listens."""
        log = self.folder / "log"
        assert wait_until(lambda: "Server listening on 0.0.0.0" in log.read_text()), log.read_text()

    def power_off(self) -> None:
        """Remove the network cable first, so that no FIN or RST gets out, and then all processes."""
        if self._holder is None:
            return
        try:
            configure_network(self.switch, f"link set {self.name} down", f"link del {self.name}")
        finally:  # the namespace's first process dies with its holder (--kill-child), and all others with that
            _kill(self._holder)
        assert wait_until(lambda: not self.pids()), self.pids()
        self._holder = None
        self._stopped.clear()
        self._mounts.clear()

    @property
    def is_reachable(self) -> bool:
        """Whether `launch` can look on this host for processes that a run left."""
        return self._holder is not None and self.has_cable and not self._stopped

    # ---- faults -------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the network cable."""
        configure_network(self.switch, f"link set {self.name} down")
        self.has_cable = False

    def plug(self) -> None:
        """Put the network cable back, and wait until packets get through: the kernel checks once a second."""
        configure_network(self.switch, f"link set {self.name} up")
        assert wait_until(lambda: can_connect(self.address, SSH_PORT))
        self.has_cable = True

    def freeze(self) -> None:
        """Suspend every process; the kernel still acknowledges packets, as on a host that hangs."""
        while running := [pid for pid in self.pids() if not self._is_stopped(pid)]:
            for pid in running:
                send_signal(pid, signal.SIGSTOP)
            self._stopped.update(running)
            time.sleep(POLL_S)

    def _is_stopped(self, pid: int) -> bool:
        state = read_state(pid)
        # A process that waits for the exec of its suspended vfork child stays in state D; it runs nothing.
        return state == "T" or (state == "D" and pid in self._stopped)

    def forget_neighbours(self) -> None:
        """Clear the ARP cache, so that the host finds others at once: without that, the kernel asks once a second."""
        assert self._holder is not None
        configure_network(self._holder.pid, f"neigh flush dev {self.interface}")

    def thaw(self) -> None:
        """Continue the processes that `freeze` suspended."""
        for pid in self._stopped.intersection(self.pids()):
            send_signal(pid, signal.SIGCONT)
        self._stopped.clear()

    def block(self, port: int, *, is_silent: bool) -> None:
        """Block new connections to a TCP port: drop them silently, or send an ICMP error as firewalld does."""
        action = "blackhole" if is_silent else "prohibit"
        self._add_rules(f"iif {self.interface} ipproto tcp dport {port} {action}")

    def refuse_peer(self, peer: Host) -> None:
        """Make another host unreachable from this one, with an immediate error."""
        assert self._holder is not None
        self._has_rules = True
        configure_network(self._holder.pid, f"route add unreachable {peer.address}")

    def drop_from(self, other: Host) -> None:
        """Drop all TCP packets from another host silently."""
        self._add_rules(f"iif {self.interface} from {other.address} ipproto tcp blackhole")

    def open_one_port(self, other: Host, port: int) -> None:
        """Block connections to another host's high ports except one, as a firewall between them does."""
        ranges = (f"1024-{port - 1}", f"{port + 1}-65534")  # the kernel takes no 65535 here
        self._add_rules(*(f"iif lo to {other.address} ipproto tcp dport {ports} unreachable" for ports in ranges))

    def _add_rules(self, *rules: str) -> None:
        assert self._holder is not None
        self._has_rules = True
        configure_network(self._holder.pid, *(f"rule add pref 10 {rule}" for rule in rules))

    def mount(self, target: str, *words: str) -> None:
        """Mount something over a path that this host sees; `target` is the last argument of `mount`."""
        self._run_inside("mount", *words, target)
        self._mounts.append(target)

    def _run_inside(self, *argv: str) -> None:
        """Run a program that sees the host's mounts and, under /proc, its processes."""
        assert self._holder is not None
        proc = f"/proc/{self._holder.pid}/ns"
        enter = ["nsenter", f"--mount={proc}/mnt", f"--pid={proc}/pid_for_children"]
        subprocess.run([*enter, *argv], env=_env(), check=True)

    def enter(self, folder: Path) -> list[str]:
        """Return the words that run a program in a directory on this host; it dies with the process that they start."""
        assert self._holder is not None
        proc = f"/proc/{self._holder.pid}/ns"
        namespaces = [f"--{kind}={proc}/{name}" for kind, name in NAMESPACES.items()]
        return ["nsenter", *namespaces, "env", f"--chdir={folder}", "setpriv", "--pdeathsig", "KILL"]

    def replace_file(self, target: str, text: str) -> None:
        """Give a file of this machine another text, only as seen from this host."""
        own = self.folder / f"file{len(self._mounts)}"
        own.write_text(text)
        self.mount(target, "--bind", str(own))

    def set_gpus(
        self, count: int, kind: str = "works", *, driver: str = "999.99", busy: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Give the host a fake nvidia-smi; `kind` is one of FAKE_ANSWERS, `busy` lists GPU, process id and MiB."""
        tool = self.folder / "bin" / "nvidia-smi"
        answer = FAKE_ANSWERS[kind].format(count=count, driver=driver)
        tool.write_text(FAKE_NVIDIA_SMI.format(answer=answer, folder=self.folder))
        tool.chmod(0o755)
        lines = [f"{gpu}, {pid}, {mib}\n" for gpu, pid, mib in busy]
        (self.folder / "gpu-processes").write_text("".join(lines))

    def heal(self) -> None:
        """Undo every fault; sshd may not listen yet on a host that was off."""
        (self.folder / "bin" / "nvidia-smi").unlink(missing_ok=True)
        if self._holder is None:
            self.power_on()
        self.thaw()
        if self._has_rules:
            assert self._holder is not None
            configure_network(self._holder.pid, "rule flush pref 10", "route flush type unreachable")
            self._has_rules = False
        if not self.has_cable:
            self.plug()
        while self._mounts:
            self._run_inside("umount", "--lazy", self._mounts.pop())

    # ---- what runs here -----------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return the ids of all living processes, sshd's included, in this machine's numbering."""
        own = read_namespace(os.getpid(), "pid")  # that of what has started it, and what enters it
        return [pid for pid in list_pids(self._namespace, "uts") if read_namespace(pid, "pid") != own]

    def processes(self) -> list[Process]:
        """Return all processes that sshd started, directly or not."""
        return describe(self.pids(), self.name)

    def end_sessions(self) -> None:
        """Kill sshd's processes for connections, one or two each, but not the one that listens."""
        servers = {pid for pid in self.pids() if read_name(pid).startswith("sshd")}
        for pid in servers:
            if read_parent(pid) in servers:
                send_signal(pid, signal.SIGKILL)


class Cluster:
    """Hosts, reachable from here by the names in `ssh_config`."""

    def __init__(self, folder: Path, names: Sequence[str], services: str = ":") -> None:
        """Name the hosts; `services` are shell lines that start services besides sshd on each of them."""
        self.folder = folder
        self.ssh_config = folder / "ssh_config"
        self.hosts: list[Host] = []
        self._names = names
        self._services = services
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def processes(self) -> list[Process]:
        """Return the processes on all hosts, including those that can't be reached."""
        return [process for host in self for process in host.processes()]

    def ranks(self) -> list[Process]:
        """Return the processes of runs on the hosts that can be reached."""
        return [process for host in self if host.is_reachable for process in host.processes() if process.is_ours]

    def heal(self) -> None:
        """Undo every fault on every host."""
        was_cut = not all(host.has_cable for host in self)
        for host in self:
            host.heal()
        for host in self if was_cut else ():
            host.forget_neighbours()
        for host in self:
            host.wait_for_sshd()

    def look_for_left_overs(self, heal: Callable[[], object], kept: str = "") -> None:
        """After a test: fail if it left a process of a run, or a directory; in any case remove what it left.

        Check reachable hosts first; then undo the faults, and check all hosts. kept: the name of a directory that
        belongs to no run.
        """
        wait_until(lambda: not self.ranks(), poll_s=CENSUS_POLL_S)
        left = self.ranks()
        heal()
        wait_until(lambda: not self.processes(), poll_s=CENSUS_POLL_S)
        left_after_all = self.processes()
        for process in left_after_all:
            process.kill()
        folders = [path for host in self for path in host.tmpdir.iterdir()]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        assert not left, f"left on hosts that could be reached: {left}"
        assert not left_after_all, f"processes are left after every fault was undone: {left_after_all}"
        assert not [path for path in folders if path.name != kept], f"folders are left: {folders}"

    def _start(self, undo: contextlib.ExitStack) -> None:
        network = _claim_network(undo)
        switch = _start([*HELD, "--net", "sh", "-euc", SWITCH_SCRIPT], self.folder / "switch.log")
        undo.callback(_kill, switch)
        uplink = f"cluster-{network}"  # the claim makes it unique
        configure_network(None, f"link add {uplink} type veth peer name uplink netns {switch.pid}")
        undo.callback(configure_network, None, f"link del {uplink}")
        configure_network(None, f"addr add {network}.255.254/16 dev {uplink}", f"link set {uplink} up")
        configure_network(switch.pid, "link set uplink master bridge up")
        for number, name in enumerate(self._names, 1):
            interface = f"data{number}"  # interface names often differ between hosts
            address = f"{network}.0.{number}"
            self.hosts.append(Host(name, address, interface, self.folder / name, switch.pid, self._services))
        self._write_files()
        for host in self:
            undo.callback(host.power_off)
            host.power_on()
        for host in self:
            host.wait_for_sshd()

    def _write_files(self) -> None:
        for host in self:
            (host.folder / "home").mkdir(parents=True)
            (host.folder / "bin").mkdir()
            _make_key(host.folder / "host_key")
            (host.folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=host.folder))
        _make_key(self.folder / "id")
        (self.folder / "shadow").write_text("root:*:::::::\n")  # sshd refuses root if its password is locked
        names = [f"{host.address} {host.name}\n" for host in self]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        keys = [f"{host.address} {(host.folder / 'host_key.pub').read_text()}" for host in self]
        (self.folder / "known_hosts").write_text("".join(keys))
        self.ssh_config.write_text("".join(CLIENT_CONFIG.format(**vars(host)) for host in self))


def configure_network(holder: int | None, *lines: str) -> None:
    """Run `ip` with these lines, in the network namespace of the process `holder` or (None) of this machine."""
    enter = [] if holder is None else ["nsenter", "--target", str(holder), "--net"]
    subprocess.run([*enter, "ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, env=_env(), check=True)


def can_connect(address: str, port: int) -> bool:
    """Tell whether a TCP connection succeeds; it does if the host is frozen."""
    try:
        socket.create_connection((address, port), timeout=0.1).close()
    except OSError:
        return False
    return True


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], env=_env(), check=True)


def _claim_network(undo: contextlib.ExitStack) -> str:
    """Return the first two bytes of an address range without a route here; an abstract socket reserves it."""
    routes = subprocess.run(["ip", "-4", "route"], env=_env(), capture_output=True, text=True, check=True).stdout
    for network in RANGES:
        claim = undo.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        with contextlib.suppress(OSError):  # claimed
            claim.bind(f"\0test cluster {network}")
            if f"{network}." not in routes:
                return network
    raise AssertionError(f"every range from {RANGES[0]} to {RANGES[-1]} is in use here")


def _start(argv: list[str], log: Path) -> subprocess.Popen[str]:
    """Start a process that holds namespaces, and wait until it prints `ready`."""
    with log.open("w") as file:
        pipe = subprocess.PIPE
        holder = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=file, text=True, env=_env())
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        _kill(holder)
        raise AssertionError(f"{argv} is not ready: {log.read_text()}")
    return holder


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _env() -> dict[str, str]:
    return {**os.environ, "PATH": TOOL_PATH, "LC_ALL": "C"}
