"""How the processes of a run are started, watched, counted and stopped on a node. No connection is handled here.

In reading order:

    proc                   processes as /proc shows them, and signals to them
    unfinished             which files processes are writing when they are killed
    owned                  which of them belong to a run
    workers                how a process is started, and the run's directory
    run_owner              which run owns a directory, and whether that run is over
    run_folders            how the directories of runs that are over are found and removed
    ladder                 how a run is stopped, step by step
    handover_log           what the guardian must know if the supervisor dies
    kills                  whether the kernel killed a rank because memory ran out
    py_spy                 one source of a rank's Python stack: py-spy
    faulthandler_stacks    the other source: the rank writes it itself
    stacks                 the stacks of all ranks, from either source
    shim                   the parent of ranks that are plain commands
    torchrun               the parent of all other ranks, in the Python that has torch
    ranks                  the start, the output and the exit of each rank
"""
