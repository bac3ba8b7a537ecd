"""The code of a run on a node: files that are kept by their hash, and a directory of copies for each run.

In reading order:

    listing    which files a tree has, as it is sent and hashed; the launcher imports it too
    store      files by the hash of their content; the launcher imports it too
    arrivals   files that come in pieces
    chain      nodes that pass pieces on, each to the next
    intake     ask for what is missing, and take it
    proof      whether a directory holds exactly the files of a listing
    folder     the directory of one run
    folders    those of all runs: what becomes of one that has ended
    group      nodes that share their cache directory
    worker     the process that puts the code in its place
    keeper     the supervisor's end of that process
"""
