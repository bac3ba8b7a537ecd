"""Write the tables of known log lines into TROUBLESHOOTING.md, from the signatures that the launcher uses.

.venv/bin/python docs/log_lines.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launcher.diagnosis.exit_codes import ENDINGS, LOSSES
from launcher.diagnosis.signatures import SIGNATURES, Kind, Signature

GUIDE = Path(__file__).parents[1] / "TROUBLESHOOTING.md"
BEGIN = "<!-- made by docs/log_lines.py: {} -->"
END = "<!-- end -->"
HEAD = ["| line | cause | fix |", "|---|---|---|"]
# The topic that begins with a signature; the signatures after it belong to the same topic, up to the next one named.
TOPICS = {
    "slurm-ended": "slurm",
    "gpu-memory-shared": "memory",
    "gpu-fell-off": "gpu",
    "module-missing": "python",
    "local-rank": "script",
    "different-collectives": "nccl",
    "no-keyboard": "script",
    "open-files": "files",
    "no-internet": "network",
    "duplicate-gpu": "nccl",
    "gloo-loopback": "network",
    "clients-missing": "nccl",
    "worker-gone": "memory",
}


def make_tables() -> dict[str, str]:
    """Return the tables of each topic as Markdown; `endings` has how ranks exit and how connections end."""
    signatures: dict[str, list[Signature]] = {}
    topic = ""
    for signature in SIGNATURES:
        topic = TOPICS.get(signature.name, topic)
        signatures.setdefault(topic, []).append(signature)
    endings = ["| ending | cause | fix |", HEAD[1]]
    endings += [_cells(f"`{said}`", known.cause, known.fix) for said, known in ENDINGS.items()]
    endings += [_cells(f"`lost n2 ({said} ...)`", known.cause, known.fix) for said, known in LOSSES.items()]
    return {topic: _table(some) for topic, some in signatures.items()} | {"endings": "\n".join(endings)}


def update(text: str) -> str:
    """Return the guide's text with the tables as they are now."""
    for topic, table in make_tables().items():
        begin = BEGIN.format(topic)
        if begin not in text:
            raise ValueError(f"{GUIDE.name} has no line {begin}")
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n\n{table}\n\n{END}{after}"
    return text


def _table(signatures: Iterable[Signature]) -> str:
    """Return a table of the lines that show a cause, and one of those that only show its consequences."""
    signatures = list(signatures)
    causes = [signature for signature in signatures if signature.kind is not Kind.CONSEQUENCE]
    consequences = [signature for signature in signatures if signature.kind is Kind.CONSEQUENCE]
    lines = [*HEAD, *map(_row, causes)]
    if consequences:
        lines += ["", "Healthy ranks print these lines when another rank died or never joined; look for that rank:"]
        lines += ["", *HEAD, *map(_row, consequences)]
    return "\n".join(lines)


def _row(signature: Signature) -> str:
    says = signature.says or f"`{signature.pattern}`"
    groups = {name: name.upper() for name in signature.groups}
    return _cells(says, signature.cause.format(**groups), signature.fix.format(**groups))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    GUIDE.write_text(update(GUIDE.read_text("utf-8")), "utf-8")
