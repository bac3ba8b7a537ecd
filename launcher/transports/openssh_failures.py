"""Every way in which `ssh` fails to log in, told by the words on its stderr and judged."""

from __future__ import annotations

import base64
import binascii
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher.transports.known_hosts import fingerprint
from launcher.transports.ssh_answers import Answer
from launcher.transports.ssh_failures import Judgement, Place

_KEYGEN_TIMEOUT_S = 5
_LINE_LENGTH = 200

# "Connection closed" alone says little, and follows on most of the others: it is looked for last.
_CONNECT = re.compile(r"^ssh: connect to host (\S+) port (\d+): (.*?)\r?$", re.MULTILINE)
_RESOLVE = re.compile(r"^ssh: Could not resolve hostname (\S+): ", re.MULTILINE)
_FORWARD = re.compile(r"^channel \d+: open failed: (.*?)\r?$", re.MULTILINE)
_DENIED = re.compile(r"^(?:(?P<user>\S+)@(?P<host>\S+): Permission denied|.*Too many authentication failures)", re.M)
_UNKNOWN_KEY = re.compile(r"^No \S+ host key is known for (\S+) and you have", re.MULTILINE)
_CHANGED_KEY = re.compile(r"^Host key for (\S+) has changed and you", re.MULTILINE)
_REVOKED_KEY = re.compile(r"^\S+ host key for (\S+) (?:was|is marked as) revoked", re.MULTILINE)
_NEW_FINGERPRINT = re.compile(r"^(\S+:\S+)\.\r?$", re.MULTILINE)
_KNOWN_LINE = re.compile(r"^Offending \S+ key in (.+):(\d+)\r?$", re.MULTILINE)
_KEY_FAILED = "Host key verification failed"
_SILENT = re.compile(r"^(?:Connection timed out during banner exchange|Connection to \S+ port \d+ timed out)", re.M)
_NO_SSH = re.compile(
    r"^(?:kex_exchange_identification: (?P<banner>banner line .*?|No SSH version received.*?)"
    r"|(?P<packet>Bad packet length \d+)\.)\r?$",
    re.MULTILINE,
)
_DROPPED = re.compile(
    r"^(?:kex_exchange_identification: |Connection (?:closed|reset) by |.*Connection reset by peer)", re.MULTILINE
)


def judge(text: str, answer: Answer, hops: Sequence[Answer], *, is_late: bool) -> tuple[Judgement, str | None]:
    """Return the class of a failure, and the gateway to blame; is_late: ssh had not ended in time."""
    for find in (_connect, _host_key, _login):
        found = find(text, answer, hops)
        if found is not None:
            judgement, place = found
            return judgement, place.name if place.name != answer.place.name else None
    return _judge_the_rest(text, answer, is_late=is_late), None


_Found = tuple[Judgement, Place] | None


def _connect(text: str, answer: Answer, hops: Sequence[Answer]) -> _Found:
    if found := _CONNECT.search(text):
        place = _blame(f"[{found[1]}]:{found[2]}", answer, hops).place
        return _judge_errno(found[3], place), place
    if found := _RESOLVE.search(text):
        place = _blame(found[1], answer, hops).place
        return place.name_unknown(), place
    if found := _FORWARD.search(text):
        return answer.place.no_way(found[1].removeprefix("connect failed: ")), answer.place
    return None


def _judge_errno(words: str, place: Place) -> Judgement:
    for said, judge_it in (
        ("refused", place.refused),
        ("timed out", place.timed_out),
        ("unreachable", place.no_route),
        ("No route", place.no_route),
        ("reset", place.dropped),
    ):
        if said in words:
            return judge_it()
    return place.other(words)


def _host_key(text: str, answer: Answer, hops: Sequence[Answer]) -> _Found:
    if _KEY_FAILED not in text:
        return None
    if found := _REVOKED_KEY.search(text):
        place = _blame(found[1], answer, hops).place
        return place.key_revoked(), place
    if found := _CHANGED_KEY.search(text):
        place = _blame(found[1], answer, hops).place
        new = _NEW_FINGERPRINT.search(text)
        return place.key_changed(new[1] if new else "", _known_fingerprint(text)), place
    if found := _UNKNOWN_KEY.search(text):
        place = _blame(found[1], answer, hops).place
    else:
        # No name is said. A gateway's words come before those about the way that it has closed.
        place = (hops[-1] if hops and _DROPPED.search(text) else answer).place
    # A gateway is logged in to by another ssh, which gets no options of ours.
    return place.key_unknown(can_accept=place is answer.place), place


def _known_fingerprint(text: str) -> str:
    """Return the fingerprint of the key in known_hosts, which ssh names by file and line."""
    found = _KNOWN_LINE.search(text)
    if found is None:
        return "another one"
    try:
        line = Path(found[1]).read_text("utf-8", "replace").splitlines()[int(found[2]) - 1]
        blob = base64.b64decode(next(word for word in line.split() if word.startswith("AAAA")))
    except (OSError, IndexError, StopIteration, binascii.Error):
        return f"that of {found[1]}:{found[2]}"
    return fingerprint(blob)


def _login(text: str, answer: Answer, hops: Sequence[Answer]) -> _Found:
    found = _DENIED.search(text)
    if found is None:
        return None
    blamed = _blame(found["host"] or "", answer, hops)
    files = blamed.key_files
    if files and all(map(_has_passphrase, files)):
        return blamed.place.key_encrypted(), blamed.place
    return blamed.place.login_refused([*([] if blamed.is_agent_limited else ["the agent"]), *files]), blamed.place


def _has_passphrase(path: str) -> bool:
    """Ask ssh-keygen, which reads every format that ssh does."""
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        return False
    argv = [keygen, "-y", "-P", "", "-f", str(Path(path).expanduser())]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_KEYGEN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode != 0 and "passphrase" in done.stderr


def _judge_the_rest(text: str, answer: Answer, *, is_late: bool) -> Judgement:
    place = answer.place
    if _SILENT.search(text):
        return place.timed_out(", ".join(answer.jumps))
    if is_late:
        return place.slow_login()
    if found := _NO_SSH.search(text):
        return place.no_ssh(found["banner"] or found["packet"])
    if found := _DROPPED.search(text):
        said = _last_line(text[: found.start()])
        return place.cut_off(said) if answer.option("proxycommand") else place.dropped()
    return place.other(_last_line(text)) if text.strip() else place.lost()


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()[:_LINE_LENGTH]


def _blame(said: str, answer: Answer, hops: Sequence[Answer]) -> Answer:
    """Return which hop ssh speaks of: by its address, or the name under which its key is known."""
    for hop in hops:
        place = hop.place
        if said in (place.host, place.known_name, f"[{place.host}]:{place.port}"):
            return hop
    return answer
