"""From what `ssh` prints on stderr to the failure of a login, and which host on the way is to blame."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import HostFailure
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.openssh_config import HostConfig

ONLY_PASSWORD = "pass --ask-password with --transport fabric: it wants a password"
_KEYGEN_TIMEOUT_S = 5
_LINE_LENGTH = 200

# What the patterns below match are lines of OpenSSH's client. "Connection closed" alone says little and follows most of
# the other lines, so it is looked for last.
_NEGOTIATE = re.compile(r"^Unable to negotiate with (\S+) port (\d+): .*?(?=\r?$)", re.MULTILINE)
_CONNECT = re.compile(r"^ssh: connect to host (\S+) port (\d+): (.*?)\r?$", re.MULTILINE)
_RESOLVE = re.compile(r"^ssh: Could not resolve hostname (\S+): ", re.MULTILINE)
_FORWARD = re.compile(r"^channel \d+: open failed: (.*?)\r?$", re.MULTILINE)
_DENIED = re.compile(r"^(?:(?P<user>\S+)@(?P<host>\S+): Permission denied|.*Too many authentication failures)", re.M)
# A password alone, or besides the key that it has accepted.
_WANTS_PASSWORD = re.compile(
    r": Permission denied \((?!.*publickey).*(?:password|keyboard-interactive)"
    r"|^Authenticated .*with partial success(?s:.*): Permission denied \(.*(?:password|keyboard-interactive)",
    re.MULTILINE,
)
_OPEN_KEY = re.compile(r'^Load key "(.+)": bad permissions\r?$', re.MULTILINE)
_UNKNOWN_KEY = re.compile(r"^No \S+ host key is known for (\S+) and you have", re.MULTILINE)
_CHANGED_KEY = re.compile(r"^Host key for (\S+) has changed and you", re.MULTILINE)
_REVOKED_KEY = re.compile(r"^(?:\S+ host key for (\S+) (?:was|is marked as) revoked|Host key .* revoked by file)", re.M)
_UNFIT_KEY = re.compile(r"^(?:Error checking host key .*|Certificate invalid: .*?)\r?$", re.MULTILINE)
_NEW_FINGERPRINT = re.compile(r"^(\S+:\S+)\.\r?$", re.MULTILINE)
_KEY_FAILED = "Host key verification failed"
_SILENT = re.compile(r"^(?:Connection timed out during banner exchange|Connection to \S+ port \d+ timed out)", re.M)
_NO_SSH = re.compile(
    r"^(?:kex_exchange_identification: (?P<banner>banner line .*?|No SSH version received.*?)"
    r"|(?P<packet>Bad packet length \d+)\.)\r?$",
    re.MULTILINE,
)
# The connection through a jump host was closed before ssh had written anything to it.
_UNWRITTEN = r"banner exchange: Connection to \S+ port \d+: (?:Broken pipe|Connection reset by peer)"
# A line of each ssh whose connection went through the jump host that has failed: the later jump hosts' and the host's.
_CLOSED_WAY = re.compile(
    rf"^(?:kex_exchange_identification: (?:read: )?Connection (?:closed|reset) |{_UNWRITTEN})", re.MULTILINE
)
_UNNAMED = "UNKNOWN"  # at the other end of a pipe
_NAMED_PORT = re.compile(r"\[(.+)\]:(\d+)")
_DROPPED = re.compile(
    rf"^(?:kex_exchange_identification: |{_UNWRITTEN}|Connection (?:closed|reset) by |.*Connection reset by peer)",
    re.MULTILINE,
)


def classify(
    text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig], *, is_late: bool
) -> tuple[HostFailure, str | None]:
    """Return why a login has failed, and the jump host that is to blame; None means the host itself.

    text: all that ssh has printed on stderr; answer, jump_hosts: what `ssh -G` prints for the host and each jump host.
    is_late: ssh was still running when its time was over.
    """
    for find in (_connect, _talk, _host_key, _login):
        found = find(text, answer, jump_hosts)
        if found is not None:
            failure, place = found
            return failure, place.name if place.name != answer.place.name else None
    failure, place = _classify_the_rest(text, answer, jump_hosts, is_late=is_late)
    return failure, place.name if place.name != answer.place.name else None


_Found = tuple[HostFailure, Destination] | None


def _connect(text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig]) -> _Found:
    if found := _CONNECT.search(text):
        place = _blame(f"[{found[1]}]:{found[2]}", text, answer, jump_hosts).place
        return _classify_errno(found[3], place), place
    if found := _RESOLVE.search(text):
        place = _blame(found[1], text, answer, jump_hosts).place
        return place.name_unknown(), place
    if found := _FORWARD.search(text):
        way = [*jump_hosts, answer]
        jump_host = _blame(None, text, answer, jump_hosts)  # its login worked, and it can't reach the next one
        place = way[min(way.index(jump_host) + 1, len(jump_hosts))].place
        return place.no_way(found[1].removeprefix("connect failed: ")), place
    return None


def _classify_errno(words: str, place: Destination) -> HostFailure:
    for said, make in (
        ("refused", place.refused),
        ("timed out", place.timed_out),
        ("unreachable", place.no_route),
        ("No route", place.no_route),
        ("is down", place.no_route),  # macOS says `Host is down` where Linux has no route
        ("reset", place.dropped),
    ):
        if said in words:
            return make()
    return place.other(words)


def _talk(text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig]) -> _Found:
    """Find a server that answers but doesn't speak SSH, or supports no algorithm that this ssh supports."""
    if found := _NEGOTIATE.search(text):
        place = _blame(f"[{found[1]}]:{found[2]}" if found[1] != _UNNAMED else None, text, answer, jump_hosts).place
        return place.other(found[0]), place
    if found := _NO_SSH.search(text):
        place = _blame(None, text, answer, jump_hosts).place
        return place.no_ssh(found["banner"] or found["packet"]), place
    return None


def _host_key(text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig]) -> _Found:
    if _KEY_FAILED not in text:
        return None
    if found := _REVOKED_KEY.search(text):
        place = _blame(found[1], text, answer, jump_hosts).place
        return place.key_revoked(), place
    if found := _UNFIT_KEY.search(text):
        place = _blame(None, text, answer, jump_hosts).place
        return place.other(found[0].rstrip()), place
    if found := _CHANGED_KEY.search(text):
        place = _blame(found[1], text, answer, jump_hosts).place
        new = _NEW_FINGERPRINT.search(text)
        return place.key_changed(new[1] if new else ""), place
    found = _UNKNOWN_KEY.search(text)  # no match where ssh would have asked the user: then it prints no name
    place = _blame(found[1] if found else None, text, answer, jump_hosts).place
    # To a jump host another ssh logs in, which doesn't get the options of `launch`.
    return place.key_unknown(), place


def _login(text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig]) -> _Found:
    found = _DENIED.search(text)
    if found is None:
        return None
    blamed = _blame(found["host"], text, answer, jump_hosts)
    place = replace(blamed.place, user=found["user"] or blamed.place.user)
    files = blamed.key_files
    if files and all(map(_has_passphrase, files)):
        return place.key_encrypted(), place
    tried = [*([] if blamed.is_agent_limited else ["the agent"]), *files]
    fix = ONLY_PASSWORD if _WANTS_PASSWORD.search(text) else ""
    if is_open := [path for path in _OPEN_KEY.findall(text) if path in files or not blamed.options]:
        fix = f"chmod 600 {shlex.quote(is_open[0])}: ssh ignores a key that others may read"
    return place.login_refused(tried if blamed.options else ["the keys that ssh has for it"], fix), place


def _has_passphrase(path: str) -> bool:
    """Tell whether a private key has a passphrase, by ssh-keygen, which reads every format that ssh does."""
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        return False
    argv = [keygen, "-y", "-P", "", "-f", path]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_KEYGEN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode != 0 and "passphrase" in done.stderr


def _classify_the_rest(
    text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig], *, is_late: bool
) -> tuple[HostFailure, Destination]:
    place = answer.place
    if _SILENT.search(text):
        return place.timed_out(", ".join(jump_host.place.name for jump_host in jump_hosts)), place
    if is_late:
        return place.slow_login(), place
    if found := _DROPPED.search(text):
        way = [*jump_hosts, answer]
        dropped = way[-min(max(1, len(_CLOSED_WAY.findall(text))), len(way))]  # one of these lines is its own
        said = _last_line(text[: found.start()])
        place = dropped.place
        return place.cut_off(said) if dropped.option("proxycommand") else place.dropped(), place
    return place.other(_last_line(text)) if text.strip() else place.lost(), place


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()[:_LINE_LENGTH]


def _blame(said: str | None, text: str, answer: HostConfig, jump_hosts: Sequence[HostConfig]) -> HostConfig:
    """Return which host on the way a message of ssh is about, a jump host or the host itself.

    It is identified by `said`, the address or known_hosts name in the message, and by how many connections through it
    were closed. A name of none of them must come from an ssh in a ProxyCommand: it is returned without options.
    """
    way = [*jump_hosts, answer]
    likely = way[-1 - min(len(_CLOSED_WAY.findall(text)), len(jump_hosts))]
    if said is None or (answer.is_direct and not jump_hosts):
        return likely
    for hop in (likely, *way):  # two may have one address, each in a network of its own
        place = hop.place
        if said in (place.host, place.known_name, f"[{place.host}]:{place.port}"):
            return hop
    named = _NAMED_PORT.fullmatch(said)
    name, port = (named[1], int(named[2])) if named else (said, 22)
    return HostConfig(Destination(name, name, port, answer.place.user), {})
