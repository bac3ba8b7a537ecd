"""The code of a run on a node: files that are kept by their hash, and a directory of copies for each run.

The launcher imports `listing`, `store` and `folders` too.
"""
