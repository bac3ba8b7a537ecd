"""python -m bench [NAME...]: measure what README claims; exit with 1 if a limit is exceeded or the record was better.

    python -m bench record [NAME...]   keep the results in bench/record.json
    python -m bench peers              measure other launchers, too; docs/bench.md has the table
    python -m bench soak               one run that is made to fail many times
    python -m bench gpu                everything that needs a GPU; docs/gpu.md has the results

The hosts are network namespaces of this machine with a real sshd each, so the first two need root.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run what was requested."""
    # A launcher that is installed has its bytecode; without, most of a start is compiling.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # In the background of a script it is ignored, and what is started here must get it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, rest = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    # Each is imported only if it is needed: a GPU's machine has neither root nor network tools.
    if first == "gpu":
        from bench.gpu.table import main as run
    elif first == "soak":
        from bench.soak import main as run
    elif first == "peers":
        from bench.peers import main as run
    elif {"-h", "--help"} & {*sys.argv[1:]}:
        from bench.record import CLAIMS

        print(f"{__doc__}\nNAMEs: {', '.join(dict.fromkeys(claim.measure for claim in CLAIMS.values()))}.")
        return 0
    else:
        from bench.record import main as run

        rest = sys.argv[1:]
    return run(rest)


if __name__ == "__main__":
    sys.exit(main())
