"""Runs from Python: each function starts the command of its name as a child, with --json, and reads what that says.

The command line is the only way into a run, so options, checks and messages are the same. `launcher/__init__.py`
exports what is public. `child` makes words of keyword arguments, starts the command and reads it, `values` has the
types of what comes back, and `run` the functions; docs/options_table.py writes `option_types`. See
docs/decisions/0027-python-api.md.
"""
