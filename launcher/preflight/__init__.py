"""Facts of all nodes -> findings: what would break a run stops it, what would slow it is said in a line. Pure.

In reading order:

    findings        Finding: what a check says; equal ones of several hosts become one
    activation      whether --setup, --venv and --conda worked on each node
    requirements    what a plan needs of each node: a Python with torch, the folder, enough GPUs
    gpus            who is on the GPUs, and whether they are well
    condition       memory, limits, disks, left-overs, names
    network         whether the nodes reach each other
    comparison      the nodes against each other, clocks too
    checks          all of these
    summary         what all nodes have in common, in a few words
"""
