"""The code of a run on a node: files that are kept by their hash, and a directory of copies for each run.

In reading order:

    listing    which files a tree has, as it is sent and hashed; the launcher imports it too
"""
