"""How logins over SSH fail: with the same kind, message and fix whichever client has met the failure.

`fabric_failures` and `openssh_failures` read what their client says, and take the HostFailure from a Place.
What becomes of it on the way to the screen stands in `launcher.errors`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.ssh.known_hosts_file import lacks_newline

# An agent would not sign with a key: its user said no, or the smart card was removed.
WOULD_NOT_SIGN = ", which would not sign"
LET_IT_SIGN = "say yes to the agent, or plug its card in"
_USUAL_FILE = "~/.ssh/known_hosts"
# A host that is booting: first nothing answers, then the machine refuses, and at last sshd answers.
_BOOTING = (
    HostFailureKind.REFUSED,
    HostFailureKind.TIMED_OUT,
    HostFailureKind.NO_ROUTE,
    HostFailureKind.NO_WAY,
    HostFailureKind.CUT_OFF,
)


def is_passing(failure: HostFailure, *, may_boot: bool) -> bool:
    """Tell whether another try may help; may_boot: also where it doesn't answer, since it may be booting.

    sshd drops connections at random beyond its MaxStartups (10:30:100), so a dropped one is always worth another try.
    A refused login never is: a current sshd locks out an address that tries again (PerSourcePenalties). Nor is a slow
    login: the host answers, so it isn't booting, and too many logins through the same jump host may be to blame.
    """
    return failure.kind is HostFailureKind.DROPPED or (may_boot and failure.kind in _BOOTING)


def pass_on(failure: HostFailure, name: str, jump_host: str | None = None) -> HostFailure:
    """Return the failure of the host `name` that came of `failure`; jump_host: the one on the way that is to blame.

    All hosts behind a jump host share its failure, and each gets one of its own from it.
    """
    text = failure.text if jump_host is None else f"on the way to it, {jump_host}: {failure.text}"
    return replace(failure, host=name, text=text)


@dataclass(frozen=True, slots=True)
class Place:
    """The destination of a login, as ssh_config describes it; its methods make the failures of such a login."""

    name: str  # as the user wrote it
    host: str
    port: int
    user: str
    alias: str | None = None  # HostKeyAlias
    known_file: str | None = None  # the first UserKnownHostsFile

    @property
    def known_name(self) -> str:
        """Return the name under which known_hosts has its key."""
        return self.alias or (self.host if self.port == 22 else f"[{self.host}]:{self.port}")

    def name_unknown(self) -> HostFailure:
        return self._says(
            HostFailureKind.NAME_UNKNOWN, f"the name {self.host} is not known", "check the spelling, DNS or ssh_config"
        )

    def refused(self) -> HostFailure:
        return self._says(
            HostFailureKind.REFUSED, f"{self._where} refuses the connection", "is sshd running there, and on that port?"
        )

    def timed_out(self, way: str = "") -> HostFailure:
        """Return that nothing answers; way: the jump hosts before it, any of which may be the silent one."""
        by_way = f" by way of {way}" if way else ""
        fix = "is it on, and does a firewall let SSH through?"
        return self._says(HostFailureKind.TIMED_OUT, f"{self._where} does not answer{by_way}", fix)

    def slow_login(self) -> HostFailure:
        """Return that the login took too long; not tried again, since --connect-timeout is the user's to raise."""
        fix = "is it overloaded, or its directory service slow?"
        return self._says(HostFailureKind.SLOW_LOGIN, "it did not finish the login in time", fix)

    def no_route(self) -> HostFailure:
        return self._says(HostFailureKind.NO_ROUTE, f"no route to {self._where}", "is it on, and is the network up?")

    def no_way(self, why: str) -> HostFailure:
        """Return that the last jump host can't reach it; why: in that sshd's words."""
        fix = "is it on, and its sshd running?"
        return self._says(HostFailureKind.NO_WAY, f"the gateway can't reach {self._where} ({why})", fix)

    def dropped(self) -> HostFailure:
        fix = "too many connections at once? raise MaxStartups in its sshd_config"
        return self._says(HostFailureKind.DROPPED, "sshd dropped the connection before its banner", fix)

    def no_ssh(self, words: str) -> HostFailure:
        """Return that a server answers which doesn't speak SSH; words: what it sends instead."""
        fix = "does its sshd listen on that port?"
        return self._says(HostFailureKind.NO_SSH, f"what answers at {self._where} is no SSH server: {words}", fix)

    def cut_off(self, words: str) -> HostFailure:
        """Return that its ProxyCommand ended; words: that command's last line, perhaps that a jump host dropped it."""
        if not words or "kex_exchange_identification" in words or "Connection closed by" in words:
            return self.dropped()
        return self._says(HostFailureKind.CUT_OFF, f"its ProxyCommand ended: {words}", self._by_hand)

    def key_changed(self, new: str, known: str) -> HostFailure:
        file = f"-f {shlex.quote(self.known_file)} " if self.known_file else ""
        return self._says(
            HostFailureKind.HOST_KEY_CHANGED,
            f"its host key has changed: {new}, known is {known}",
            f"if the machine was reinstalled: ssh-keygen {file}-R {shlex.quote(self.known_name)}; "
            "if not, someone listens in",
        )

    def key_revoked(self, fingerprint: str = "") -> HostFailure:
        return self._says(
            HostFailureKind.HOST_KEY_REVOKED,
            f"its host key is marked as revoked{fingerprint and f': {fingerprint}'}",
            f"someone may have stolen it; who wrote @revoked into {self.known_file or 'known_hosts'} knows more",
        )

    def key_unknown(self, fingerprint: str = "", *, can_accept: bool = True, doubt: str = "") -> HostFailure:
        """Return that known_hosts has no key of it; doubt: why it isn't clear to which file the key belongs."""
        port = f"-p {self.port} " if self.port != 22 else ""
        file = shlex.quote(self.known_file) if self.known_file else _USUAL_FILE
        said = f"its host key is not known{fingerprint and f': {fingerprint}'}"
        if doubt:
            return self._says(HostFailureKind.HOST_KEY_UNKNOWN, said, f"UserKnownHostsFile {file} {doubt}")
        # Without an end of its last line the file would lose that one's key.
        end = f"echo >> {file}; " if lacks_newline(Path(self.known_file or _USUAL_FILE).expanduser()) else ""
        rename = f" | sed {shlex.quote(f's/^[^ #]*/{self.alias}/')}" if self.alias else ""
        return self._says(
            HostFailureKind.HOST_KEY_UNKNOWN,
            said,
            f"check it and add it: {end}ssh-keyscan {port}{self.host}{rename} >> {file}"
            + ("; or trust it now: --accept-new-host-keys" if can_accept else ""),
        )

    def key_unrecorded(self, reason: str) -> HostFailure:
        """Return that its new key was accepted but not saved; reason: which file couldn't be written, and why."""
        return self._says(
            HostFailureKind.HOST_KEY_UNRECORDED,
            f"its new host key can't be recorded: {reason}",
            "make that file writable, or name another one with UserKnownHostsFile",
        )

    def key_encrypted(self) -> HostFailure:
        return self._says(HostFailureKind.KEY_ENCRYPTED, "its key has a passphrase", "ssh-add it to an agent first")

    def login_refused(self, tried: Sequence[str], fix: str = "") -> HostFailure:
        """Return that it refused all that was tried; fix: how to log in, if not by copying a key there."""
        return self._says(
            HostFailureKind.LOGIN_REFUSED,
            f"login refused for user {self.user} (tried {', '.join(tried) or 'nothing: there is no key'})",
            fix or f"copy a key there: ssh-copy-id {self._target}",
        )

    def lost(self) -> HostFailure:
        return self._says(HostFailureKind.LOST, "the connection was lost while connecting", self._by_hand)

    def other(self, text: str) -> HostFailure:
        """Return a failure that has no class of its own, in the words of the client."""
        return self._says(HostFailureKind.SSH, text, self._by_hand)

    def _says(self, kind: HostFailureKind, text: str, fix: str) -> HostFailure:
        return HostFailure(self.name, kind, text, fix, self.host)

    @property
    def _where(self) -> str:
        return f"{self.host} port {self.port}"

    @property
    def _target(self) -> str:
        port = f"-p {self.port} " if self.port != 22 else ""
        return f"{port}{self.user}@{self.host}"

    @property
    def _by_hand(self) -> str:
        return f"try by hand: ssh {self._target} true"
