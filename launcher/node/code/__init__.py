"""The code of a run on a node: a directory for each run, with files that the launcher sends or earlier runs have.

The launcher imports `listing` and `folders` too.
"""
