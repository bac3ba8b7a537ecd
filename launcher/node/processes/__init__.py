"""How the processes of a run are started, watched, counted and ended on a node. Nothing here talks with the launcher.

In reading order:

    proc                   processes as /proc shows them, and signals to them
    owned                  which of them belong to a run
    workers                how a process is started, and the run's directory
    run_owner              whose that directory is, and whether its run is over
    run_folders            the directories of runs that are over: found, and removed
    ladder                 how a run is ended, step by step
    handover_log           what the guardian must know if the supervisor dies
    kills                  whether the kernel killed a rank for lack of memory
    py_spy                 one source of a rank's Python stack: py-spy
    faulthandler_stacks    the other: the rank writes it itself
    stacks                 the stacks of all ranks, from the one source or the other
    shim                   the parent of the ranks of plain commands
    torchrun               the parent of all other ranks, in the Python that has torch
    ranks                  the start, the output and the exit of each rank
"""
