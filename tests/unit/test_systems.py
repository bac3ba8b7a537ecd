"""What only Linux has: used where the nodes' code is, and nowhere else, since Macs launch too.

Looked for in the text of the source; tests/ssh/test_ssh_from_macos.py runs what it can of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from machines.macos import missing_names

ROOT = Path(__file__).parents[2]
ON_LINUX = "launcher/node/"

# Tables of this machine's own numbers: for those of a node they would be wrong on a Mac.
OWN_NUMBERS = {"signal.Signals", "signal.strsignal", "os.strerror", "errno.errorcode"}
PROGRAMS = "free|ip|journalctl|lscpu|lsof|nproc|ps|setsid|ss|systemctl|timeout"  # as the first word of a list
ELSEWHERE = re.compile(
    rf"""["'](?:/proc/|/sys/|/dev/shm)[^ "']*["']|(?:\[|(?<!\w)\()"(?:{PROGRAMS})"[,\]]|errno [!=]= \d|\b\w+\.prctl\b"""
)
ALLOWED = {
    ("launcher/cli/options/file_owners.py", "os.listxattr"): "where there is one",
    ("launcher/distributed.py", "os.sched_getaffinity"): "where there is one",
    ("launcher/cli/find_run.py", '("ps",'): "it is launch ps",
    ("launcher/cli/options/request.py", '["nproc",'): "it is the option --nproc",
    ("launcher/session/signals.py", "signal.Signals"): "a signal that this very process got",
}


def find_uses(text: str) -> Iterator[str]:
    """Yield everything that macOS lacks, or numbers in another way."""
    foreign = {f"{module}.{name}" for module, names in missing_names().items() for name in names} | OWN_NUMBERS
    text = re.sub(r"(?m)(?:^ *|  )#.*", "", text)
    imports = re.findall(r"(?m)^ *from (\w+) import (.+)$", text)
    names = [f"{module}.{name}" for module, line in imports for name in re.findall(r"\w+", line)]
    yield from foreign & {*names, *re.findall(r"\b\w+\.\w+\b", text)}
    yield from ELSEWHERE.findall(text)


def test_a_launch_host_needs_nothing_of_linux() -> None:
    files = {file.relative_to(ROOT).as_posix(): file for file in (ROOT / "launcher").rglob("*.py")}
    launched = {path: file.read_text("utf-8") for path, file in files.items() if not path.startswith(ON_LINUX)}
    assert {(path, words) for path, text in launched.items() for words in find_uses(text)} == {*ALLOWED}
