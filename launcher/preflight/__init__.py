"""Turn the facts of all nodes into findings: problems that stop a run before it starts, warnings, and notes.

Nothing here does I/O: `launcher.runs.inspection` has gathered the facts.

In reading order:

    findings        Finding: what a check found; equal ones of several hosts are merged
    activation      whether --setup, --venv and --conda worked on each node
    requirements    what a plan needs of each node: a Python with torch, the directory, enough GPUs
    gpus            which other processes are on the GPUs, and whether the GPUs are healthy
    condition       each node by itself: memory, limits, disks, leftover processes, name look-ups
    network         whether the nodes reach each other
    links           hosts and pairs with unusual round trips or packet loss
    comparison      how nodes differ from each other: versions, GPUs, clocks, networks
    packages        which installed packages differ
    code            which Python files of the run differ
    checks          runs all of these
    summary         what all nodes have in common, in a few words
"""
