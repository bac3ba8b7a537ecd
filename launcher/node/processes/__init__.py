"""How the processes of a run are started, watched, counted and ended on a node.

In reading order:

    proc            processes as /proc shows them, and signals to them
    owned           which of them belong to a run
    workers         how we start one, and the run's folder
    ladder          how a run is ended, step by step
    handover_log    what the guardian must know if the supervisor dies
    kills           whether the kernel killed a rank for lack of memory
    stacks          where the ranks stand, when they hang
    shim            the parent of plain commands
    torchrun        the parent of the other ranks, in the Python that has torch
    ranks           the ranks' start, output and exit codes
"""
