"""The classes of failed logins over SSH, with the same message and hint whichever client has met them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import HostFailure
from launcher.transports.ssh.known_hosts_file import lacks_newline

# Another try may help: sshd drops connections at random beyond its MaxStartups (10:30:100).
# A refused login is never tried again: a current sshd locks out an address that does so (PerSourcePenalties).
DROPPED = "dropped"
# So it may for a host that is booting: first nothing answers, then the machine refuses, and at last sshd answers.
TIMED_OUT = "timed out"
# The host answers, so it isn't booting; too many logins through the same jump host may be to blame.
SLOW_LOGIN = "slow login"
# An agent would not sign with a key: its user said no, or the smart card was removed.
WOULD_NOT_SIGN = ", which would not sign"
LET_IT_SIGN = "say yes to the agent, or plug its card in"
_USUAL_FILE = "~/.ssh/known_hosts"
_BOOTING = ("refused", TIMED_OUT, "no route", "no way", "cut off")


@dataclass(frozen=True, slots=True)
class LoginFailure:
    """Why a login has failed: a class, one line of text, and what to do."""

    kind: str
    text: str
    hint: str
    address: str = ""  # of the host, which text and hint may name

    def is_passing(self, *, may_boot: bool) -> bool:
        """Tell whether another try may help; may_boot: also where it doesn't answer, since it may be booting."""
        return self.kind == DROPPED or (may_boot and self.kind in _BOOTING)

    def of_host(self, name: str, jump_host: str | None = None) -> HostFailure:
        """Return the failure of the host `name`; jump_host: the one on the way to it that is to blame."""
        text = self.text if jump_host is None else f"on the way to it, {jump_host}: {self.text}"
        return HostFailure(name, self.kind, text, self.hint, self.address)


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

    def name_unknown(self) -> LoginFailure:
        return self._says("name unknown", f"the name {self.host} is not known", "check the spelling, DNS or ssh_config")

    def refused(self) -> LoginFailure:
        return self._says(
            "refused", f"{self._where} refuses the connection", "is sshd running there, and on that port?"
        )

    def timed_out(self, way: str = "") -> LoginFailure:
        """Return that nothing answers; way: the jump hosts before it, any of which may be the silent one."""
        by_way = f" by way of {way}" if way else ""
        hint = "is it on, and does a firewall let SSH through?"
        return self._says(TIMED_OUT, f"{self._where} does not answer{by_way}", hint)

    def slow_login(self) -> LoginFailure:
        """Return that the login took too long; not tried again, since --connect-timeout is the user's to raise."""
        hint = "is it overloaded, or its directory service slow?"
        return self._says(SLOW_LOGIN, "it did not finish the login in time", hint)

    def no_route(self) -> LoginFailure:
        return self._says("no route", f"no route to {self._where}", "is it on, and is the network up?")

    def no_way(self, why: str) -> LoginFailure:
        """Return that the last jump host can't reach it; why: in that sshd's words."""
        hint = "is it on, and its sshd running?"
        return self._says("no way", f"the gateway can't reach {self._where} ({why})", hint)

    def dropped(self) -> LoginFailure:
        hint = "too many connections at once? raise MaxStartups in its sshd_config"
        return self._says(DROPPED, "sshd dropped the connection before its banner", hint)

    def no_ssh(self, words: str) -> LoginFailure:
        """Return that a server answers which doesn't speak SSH; words: what it sends instead."""
        hint = "does its sshd listen on that port?"
        return self._says("no ssh", f"what answers at {self._where} is no SSH server: {words}", hint)

    def cut_off(self, words: str) -> LoginFailure:
        """Return that its ProxyCommand ended; words: that command's last line, perhaps that a jump host dropped it."""
        if not words or "kex_exchange_identification" in words or "Connection closed by" in words:
            return self.dropped()
        return self._says("cut off", f"its ProxyCommand ended: {words}", self._by_hand)

    def key_changed(self, new: str, known: str) -> LoginFailure:
        file = f"-f {shlex.quote(self.known_file)} " if self.known_file else ""
        return self._says(
            "host key changed",
            f"its host key has changed: {new}, known is {known}",
            f"if the machine was reinstalled: ssh-keygen {file}-R {shlex.quote(self.known_name)}; "
            "if not, someone listens in",
        )

    def key_revoked(self, fingerprint: str = "") -> LoginFailure:
        return self._says(
            "host key revoked",
            f"its host key is marked as revoked{fingerprint and f': {fingerprint}'}",
            f"someone may have stolen it; who wrote @revoked into {self.known_file or 'known_hosts'} knows more",
        )

    def key_unknown(self, fingerprint: str = "", *, can_accept: bool = True, doubt: str = "") -> LoginFailure:
        """Return that known_hosts has no key of it; doubt: why it isn't clear to which file the key belongs."""
        port = f"-p {self.port} " if self.port != 22 else ""
        file = shlex.quote(self.known_file) if self.known_file else _USUAL_FILE
        said = f"its host key is not known{fingerprint and f': {fingerprint}'}"
        if doubt:
            return self._says("host key unknown", said, f"UserKnownHostsFile {file} {doubt}")
        # Without an end of its last line the file would lose that one's key.
        end = f"echo >> {file}; " if lacks_newline(Path(self.known_file or _USUAL_FILE).expanduser()) else ""
        rename = f" | sed {shlex.quote(f's/^[^ #]*/{self.alias}/')}" if self.alias else ""
        return self._says(
            "host key unknown",
            said,
            f"check it and add it: {end}ssh-keyscan {port}{self.host}{rename} >> {file}"
            + ("; or trust it now: --accept-new-host-keys" if can_accept else ""),
        )

    def key_unrecorded(self, reason: str) -> LoginFailure:
        """Return that its new key was accepted but not saved; reason: which file couldn't be written, and why."""
        return self._says(
            "host key unrecorded",
            f"its new host key can't be recorded: {reason}",
            "make that file writable, or name another one with UserKnownHostsFile",
        )

    def key_encrypted(self) -> LoginFailure:
        return self._says("key encrypted", "its key has a passphrase", "ssh-add it to an agent first")

    def login_refused(self, tried: Sequence[str], hint: str = "") -> LoginFailure:
        """Return that it refused all that was tried; hint: how to log in, if not by copying a key there."""
        return self._says(
            "login refused",
            f"login refused for user {self.user} (tried {', '.join(tried) or 'nothing: there is no key'})",
            hint or f"copy a key there: ssh-copy-id {self._target}",
        )

    def lost(self) -> LoginFailure:
        return self._says("lost", "the connection was lost while connecting", self._by_hand)

    def other(self, text: str) -> LoginFailure:
        """Return a failure that has no class of its own, in the words of the client."""
        return self._says("ssh", text, self._by_hand)

    def _says(self, kind: str, text: str, hint: str) -> LoginFailure:
        return LoginFailure(kind, text, hint, self.host)

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
