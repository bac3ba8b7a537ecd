"""Turn the facts of all nodes into findings: problems that stop a run before it starts, warnings, and notes.

Nothing here does I/O: `launcher.runs.inspection` has gathered the facts.
"""
