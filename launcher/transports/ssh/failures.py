"""The failures of logins over SSH: the same kind, message and fix, whichever client reports the failure.

`fabric` and `openssh_failures` interpret their client's errors, and get the HostFailure from a Destination.
`launcher.errors` says how it reaches the screen.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import SSH_PORT

# A host that is booting: first nothing answers, then the machine refuses, and at last sshd answers.
_BOOTING = (
    HostFailureKind.REFUSED,
    HostFailureKind.TIMED_OUT,
    HostFailureKind.NO_ROUTE,
    HostFailureKind.NO_WAY,
    HostFailureKind.CUT_OFF,
)


def is_passing(failure: HostFailure, *, may_boot: bool) -> bool:
    """Tell whether another try may help; may_boot: also to a host that doesn't answer, since it may be booting.

    sshd drops connections at random beyond its MaxStartups (10:30:100), so a dropped one is always worth another try.
    A refused login never is: a current sshd locks out an address that tries again (PerSourcePenalties). Nor is a slow
    login: the host answers, so it isn't booting, and too many logins through the same jump host may be to blame.
    """
    return failure.kind is HostFailureKind.DROPPED or (may_boot and failure.kind in _BOOTING)


def pass_on(failure: HostFailure, name: str, jump_host: str | None = None) -> HostFailure:
    """Return the failure of the host `name` that `failure` causes; jump_host: the one on the way that is to blame.

    All hosts behind a jump host share its failure, and each gets one of its own from it.
    """
    text = failure.text if jump_host is None else f"jump host {jump_host}: {failure.text}"
    return replace(failure, host=name, text=text)


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a login, as ssh_config describes it; its methods make the failures of such a login."""

    name: str  # as the user wrote it
    host: str
    port: int
    user: str
    alias: str | None = None  # HostKeyAlias
    known_file: str | None = None  # the first UserKnownHostsFile; None if it isn't clear which

    @property
    def known_name(self) -> str:
        """Return the name under which known_hosts has its key."""
        return self.alias or (self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}")

    def name_unknown(self) -> HostFailure:
        return self._says(
            HostFailureKind.NAME_UNKNOWN, f"the name {self.host} is not known", "check the spelling, DNS or ssh_config"
        )

    def refused(self) -> HostFailure:
        return self._says(
            HostFailureKind.REFUSED,
            f"{self._where} refuses the connection",
            "check that sshd is running there, on that port",
        )

    def timed_out(self, way: str = "") -> HostFailure:
        """Return the failure of a silent host; way: the jump hosts before it, any of which may be the silent one."""
        through = f" through {way}" if way else ""
        fix = "check that it is on and that no firewall blocks SSH"
        return self._says(HostFailureKind.TIMED_OUT, f"{self._where} does not answer{through}", fix)

    def slow_login(self) -> HostFailure:
        """Return the failure of a login that took too long; it isn't tried again: the user sets --connect-timeout."""
        fix = "raise --connect-timeout, or check its load, its directory service and your SSH agent"
        return self._says(HostFailureKind.SLOW_LOGIN, "it did not finish the login in time", fix)

    def no_route(self) -> HostFailure:
        fix = "check that it is on and that the network is up"
        return self._says(HostFailureKind.NO_ROUTE, f"no route to {self._where}", fix)

    def no_way(self, why: str) -> HostFailure:
        """Return the failure of a host that the last jump host can't reach; why: in the words of that one's sshd."""
        fix = "check that it is on and that sshd is running there"
        if "prohibited" in why.lower():
            fix = "allow it in the jump host's sshd_config: AllowTcpForwarding, PermitOpen"
        return self._says(HostFailureKind.NO_WAY, f"its jump host can't reach {self._where} ({why})", fix)

    def dropped(self) -> HostFailure:
        fix = "if many connect at once, raise MaxStartups in its sshd_config"
        return self._says(HostFailureKind.DROPPED, "sshd dropped the connection before its banner", fix)

    def no_ssh(self, words: str) -> HostFailure:
        """Return the failure of a host where another server answers; words: what that server sends."""
        fix = "check on which port its sshd listens"
        return self._says(HostFailureKind.NO_SSH, f"the server at {self._where} does not speak SSH: {words}", fix)

    def cut_off(self, words: str) -> HostFailure:
        """Return the failure after its ProxyCommand exited with these last words; a jump host may have dropped it."""
        if not words:  # it may also have been dropped, by a jump host whose ssh is quiet
            fix = f"try by hand: ssh -v {shlex.quote(self.name)} true"
            return self._says(HostFailureKind.DROPPED, "its ProxyCommand exited silently", fix)
        if "kex_exchange_identification" in words or "Connection closed by" in words:
            return self.dropped()
        return self._says(HostFailureKind.CUT_OFF, f"its ProxyCommand exited: {words}", self._by_hand)

    def key_changed(self, new: str) -> HostFailure:
        file = f"-f {shlex.quote(self.known_file)} " if self.known_file else ""
        return self._says(
            HostFailureKind.HOST_KEY_CHANGED,
            f"its host key has changed: {new} is not in known_hosts",
            f"if the machine was reinstalled, run: ssh-keygen {file}-R {shlex.quote(self.known_name)}; "
            "otherwise don't connect: someone may be intercepting the connection",
        )

    def key_revoked(self) -> HostFailure:
        """Return the failure of a host whose key must not be trusted, by known_hosts or RevokedHostKeys."""
        fix = "don't connect; ask whoever revoked it for the new key"
        return self._says(HostFailureKind.HOST_KEY_REVOKED, "its host key is revoked", fix)

    def key_unknown(self) -> HostFailure:
        said = "its host key is not known"
        if self.known_file is None:  # there is none, or it isn't clear which
            fix = "name one file with UserKnownHostsFile in ssh_config, then log in once by hand and accept the key"
            return self._says(HostFailureKind.HOST_KEY_UNKNOWN, said, fix)
        port = f"-p {self.port} " if self.port != 22 else ""
        file = shlex.quote(self.known_file)
        rename = f" | sed {shlex.quote(f's/^[^ #]*/{self.alias}/')}" if self.alias else ""
        return self._says(
            HostFailureKind.HOST_KEY_UNKNOWN,
            said,
            f"check it and add it: ssh-keyscan {port}{self.host}{rename} >> {file}"
            "; or trust new keys: StrictHostKeyChecking accept-new in ssh_config",
        )

    def key_encrypted(self) -> HostFailure:
        fix = "add the key to an agent with ssh-add first"
        return self._says(HostFailureKind.KEY_ENCRYPTED, "its key has a passphrase", fix)

    def takes_ssh(self, what: str) -> HostFailure:
        """Return the failure of a host whose login needs something that only ssh can do, after --ask-password."""
        fix = "log in with a key, and omit --ask-password, which ssh can't be given"
        return self._says(HostFailureKind.SSH, f"{what} takes ssh", fix)

    def login_refused(self, tried: Sequence[str], fix: str = "") -> HostFailure:
        """Return the failure of a host that refused everything; fix: how to log in, if not by copying a key there."""
        return self._says(
            HostFailureKind.LOGIN_REFUSED,
            f"login refused for user {self.user} (tried {', '.join(tried) or 'nothing: there is no key'})",
            fix or f"copy a key there: ssh-copy-id {self._target}",
        )

    def lost(self) -> HostFailure:
        return self._says(HostFailureKind.LOST, "the connection was lost during the login", self._by_hand)

    def other(self, text: str) -> HostFailure:
        """Return a failure that has no kind of its own, in the words of the client."""
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
