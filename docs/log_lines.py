"""Write the table of known log lines into TROUBLESHOOTING.md, from the one that the launcher uses.

.venv/bin/python docs/log_lines.py
"""

from __future__ import annotations

from pathlib import Path

from launcher.diagnosis.exit_codes import ENDINGS, LOSSES
from launcher.diagnosis.signatures import SIGNATURES, Kind, Signature

GUIDE = Path(__file__).parents[1] / "TROUBLESHOOTING.md"
BEGIN = "<!-- made by docs/log_lines.py from launcher/diagnosis/signatures.py: -->"
END = "<!-- made by docs/log_lines.py: end -->"
HEAD = ["| the log says | it means | do |", "|---|---|---|"]


def make_table() -> str:
    """Return the tables as Markdown: what ranks say, what healthy ranks say of others, how ranks and nodes end."""
    causes = [signature for signature in SIGNATURES if signature.kind is not Kind.CONSEQUENCE]
    consequences = [signature for signature in SIGNATURES if signature.kind is Kind.CONSEQUENCE]
    lines = [*HEAD, *map(_row, causes)]
    lines += ["", "These are said by ranks that are well, when another one died or did not come; look for that one."]
    lines += ["", *HEAD, *map(_row, consequences)]
    lines += ["", "Where no line tells, the way in which a rank ended does."]
    lines += ["", "| it says | it means | do |", HEAD[1]]
    lines += [_cells(f"`{said}`", known.cause, known.fix) for said, known in ENDINGS.items()]
    lines += [_cells(f"`lost n2 ({said} ...)`", known.cause, known.fix) for said, known in LOSSES.items()]
    return "\n".join(lines)


def update(text: str) -> str:
    """Return the guide's text with the tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{make_table()}\n\n{END}{after}"


def _row(signature: Signature) -> str:
    says = signature.says or f"`{signature.pattern}`"
    groups = {name: name.upper() for name in signature.groups}
    return _cells(says, signature.cause.format(**groups), signature.fix.format(**groups))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    GUIDE.write_text(update(GUIDE.read_text("utf-8")), "utf-8")
