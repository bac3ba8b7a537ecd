"""python -m bench [MEASURE...]: run the measures and print a table; exit with 1 if a limit is exceeded.

`python -m bench soak` is something else: a run that is made to fail many times.
`python -m bench gpu` is too: everything that needs a GPU.
`python -m bench mutants` breaks the trainer on purpose, and sees that its tests notice.
`python -m bench record` keeps some results in record.json, and `compare` finds what is worse than they are.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.table import Table

from bench import mutants, record, soak
from bench.gpu.table import main as run_gpu_parts
from bench.measures import MEASURES, missing_programs, parse_names


def main() -> int:
    """Run what was requested: measures, the soak, the GPU parts, the mutants, or a comparison with the record."""
    # A launcher that is installed has its bytecode; without, most of a start is compiling.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if sys.argv[1:2] == ["soak"]:
        return soak.main(sys.argv[2:])
    if sys.argv[1:2] == ["gpu"]:
        return run_gpu_parts(sys.argv[2:])
    if sys.argv[1:2] == ["mutants"]:
        return mutants.main(sys.argv[2:])
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(f"{__doc__}\nMeasures: {', '.join(MEASURES)}.")
        return 0
    if sys.argv[1:2] in (["record"], ["compare"]):
        return record.main(sys.argv[1:])
    console = Console(highlight=False)
    table = Table("measure", "value", "limit", "holds", "seen")
    all_hold = True
    for name in parse_names(sys.argv[1:]):
        measure, programs = MEASURES[name]
        missing = missing_programs(programs)
        if missing:
            all_hold = False
            table.add_row(name, "-", "-", "not run", f"install {', '.join(missing)}")
            continue
        console.print(f"bench: {name} ...", style="dim")
        for row in measure():
            all_hold &= row.holds
            unit = "" if row.unit == "ratio" else f" {row.unit}"
            limit = f"{'at least ' if row.at_least else ''}{row.limit:g}{unit}"
            table.add_row(row.name, f"{row.value:.3g}{unit}", limit, "yes" if row.holds else "NO", row.detail)
    console.print(table)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
