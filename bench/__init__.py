"""Measurements of what README and docs/ claim, and of the same with other tools: `python -m bench --help`."""

import sys
from pathlib import Path

# The hosts are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
