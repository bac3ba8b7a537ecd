"""What this node says of itself, gathered in a child of the supervisor so that nothing here can stall it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

GPU_TOOL_TIMEOUT_S = 5
_GPU_QUERY = "index,name,memory.total,driver_version"
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # struct ifreq on 64-bit Linux


def write_facts_and_exit(output_fd: int, wanted: dict[str, Any]) -> NoReturn:
    """Write the facts as one line of JSON and end this process; `wanted` is the launcher's prepare message."""
    try:
        found = gather_facts(wanted)
    except BaseException as error:  # noqa: BLE001 - a fork must not return into its parent's code
        found = {"error": "gathering facts failed: %r" % (error,)}
    try:
        with os.fdopen(output_fd, "w") as file:
            file.write(json.dumps(found) + "\n")
    finally:
        os._exit(0)


def gather_facts(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what this node says of itself, as JSON values."""
    facts: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "system": sys.platform,
        "cpu_count": len(os.sched_getaffinity(0)),
        "home": os.path.expanduser("~"),
        **_ssh_ends(),
        "addresses": list_addresses(),
    }
    facts.update(_find_folder(wanted))
    facts.update(query_gpus() if wanted.get("gpus", True) else {"gpus": [], "gpu_error": "not asked for"})
    return facts


def _ssh_ends() -> dict[str, str | None]:
    """Both ends of the SSH connection: behind a jump host or NAT ours is still one of our own addresses."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    client, server = (words[0], words[2]) if len(words) == 4 else (None, None)
    return {"ssh_client": client, "ssh_address": server}


def _find_folder(wanted: dict[str, Any]) -> dict[str, bool]:
    """Whether the working folder and the script are there; a relative script is looked up in the folder."""
    folder = os.path.expanduser(wanted.get("workdir") or "~")
    script = wanted.get("script")
    return {
        "workdir_found": os.path.isdir(folder),
        "script_found": script is None or os.path.isfile(os.path.join(folder, script)),
    }


def list_addresses() -> list[list[str]]:
    """Return [interface, address] for each address of this machine, IPv4 first."""
    return _list_ipv4() + _list_ipv6()


def _list_ipv4() -> list[list[str]]:
    import array
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        room = array.array("B", bytes(256 * _IFREQ_BYTES))
        place, _ = room.buffer_info()
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, struct.pack("iL", len(room), place))
    size = struct.unpack("iL", answer)[0]
    found = []
    for start in range(0, size, _IFREQ_BYTES):
        record = room[start : start + _IFREQ_BYTES].tobytes()
        name = record[:16].split(b"\0", 1)[0].decode()
        found.append([name, socket.inet_ntoa(record[20:24])])
    return found


def _list_ipv6() -> list[list[str]]:
    try:
        with open("/proc/net/if_inet6") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [[words[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))] for words in lines]


def find_route(master: str) -> dict[str, str | None]:
    """Return the interface and own address on the route to `master`: a connected UDP socket sends nothing."""
    family, kind, protocol, _, place = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(place)
        source = sock.getsockname()[0].split("%")[0]
    for interface, address in list_addresses():
        if address == source:
            return {"interface": interface, "address": source}
    # All of 127.0.0.0/8 is ours, and only 127.0.0.1 is listed.
    return {"interface": "lo" if source.startswith("127.") else None, "address": source}


def hold_port(port: int) -> socket.socket:
    """Bind `port` (0: any free one) without listening, so that nobody else gets it and torchrun still can."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
    except OSError:
        sock.close()
        raise
    return sock


def query_gpus() -> dict[str, Any]:
    """Return this node's GPUs; having none, or no tool to ask, is a fact and no error."""
    command = ["nvidia-smi", "--query-gpu=" + _GPU_QUERY, "--format=csv,noheader,nounits"]
    try:
        tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return {"gpus": [], "gpu_error": "nvidia-smi is not there"}
    try:
        stdout, stderr = tool.communicate(timeout=GPU_TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        tool.kill()  # not waited for: on a dead driver it hangs in state D
        return {"gpus": [], "gpu_error": "nvidia-smi gave no answer in %d s" % GPU_TOOL_TIMEOUT_S}
    # A warning (exit code 14: a corrupted infoROM) comes with a whole table, and a lost GPU with a line in it.
    lines = [line for line in stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    gpus = [gpu for gpu in map(_parse_gpu, lines) if gpu is not None]
    others = [line for line in lines if _parse_gpu(line) is None] + stderr.decode("utf-8", "replace").splitlines()
    has_failed = not gpus and tool.returncode != 0
    return {"gpus": gpus, "gpu_error": others[0] if others else "nvidia-smi failed" if has_failed else None}


def _parse_gpu(line: str) -> dict[str, int | str | None] | None:
    words = [word.strip() for word in line.split(",")]
    if len(words) != _GPU_QUERY.count(",") + 1 or not words[0].isdigit():
        return None
    index, name, memory, driver = words
    return {
        "index": int(index),
        "name": name,
        "memory_mib": int(memory) if memory.isdigit() else None,
        "driver": driver,
    }
