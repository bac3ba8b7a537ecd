"""Whether the launch host, which has logged in here, still responds: TCP shows it where no heartbeats are sent."""

from __future__ import annotations

import sys

from launcher.node import clock


class LoginConnection:
    """The TCP connection of the login that started this process.

    If the launch host is cut off, sshd closes the connection only when TCP gives up, after 15 minutes. A
    ClientAliveInterval in sshd_config did not help while something was being printed (OpenSSH 9.2).
    """

    def __init__(self, words: list[str], silence_s: float) -> None:
        """words: of SSH_CONNECTION: the client's address and port, then this host's; without them it is never dead."""
        from socket import AF_INET, AF_INET6, inet_pton

        self._silence_s = silence_s
        self._stalled_at: float | None = None  # by `clock.boottime`
        self._ends: set[tuple[bytes, bytes]] = set()  # this host's and the client's, as in /proc/net
        if len(words) == 4 and "%" not in words[0] + words[2]:
            families = [(AF_INET6, "")] if ":" in words[0] else [(AF_INET, ""), (AF_INET6, "::ffff:")]
            for family, start in families:
                ours, theirs = (_as_in_proc(inet_pton(family, start + words[at]), words[at + 1]) for at in (2, 0))
                self._ends.add((ours, theirs))

    def is_dead(self) -> bool:
        """Tell whether TCP has retransmitted for `silence_s` without an acknowledgement; must be called often."""
        if not self._is_sending_again():
            self._stalled_at = None
            return False
        moment = clock.boottime()
        self._stalled_at = self._stalled_at or moment
        return moment - self._stalled_at >= self._silence_s

    def _is_sending_again(self) -> bool:
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
            try:
                with open(path, "rb") as file:
                    for line in file:
                        words = line.split()
                        if (words[1], words[2]) in self._ends:
                            return int(words[6], 16) > 0  # retrnsmt
            except OSError:
                pass
        return False


def _as_in_proc(address: bytes, port: str) -> bytes:
    numbers = (int.from_bytes(address[start : start + 4], sys.byteorder) for start in range(0, len(address), 4))
    return b"%s:%04X" % (b"".join(b"%08X" % number for number in numbers), int(port))
