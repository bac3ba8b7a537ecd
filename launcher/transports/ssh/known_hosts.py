"""What known_hosts has of a host, by `ssh-keygen -F`, which reads hashed names and patterns as ssh does."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from launcher.transports.ssh.openssh_config import HostConfig, is_file


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A line about one host."""

    marker: str  # @revoked or @cert-authority; "" for a key of the host
    kind: str
    key: str  # in base64


def find_known_keys(answer: HostConfig) -> list[KnownKey]:
    """Return all lines about a host in the files that ssh_config names; raise OSError if there is no ssh-keygen."""
    found = []
    for path in filter(is_file, answer.known_hosts_files):
        argv = ["ssh-keygen", "-F", answer.place.known_name, "-f", str(path)]
        said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout
        for words in map(str.split, said.decode("utf-8", "replace").splitlines()):
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) > 2 and words[0] != "#":  # its own words about the line that follows
                found.append(KnownKey(marker, words[1], words[2]))
    return found
