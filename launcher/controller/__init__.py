"""The controller of a run on another machine than the one where `launch` was typed, and what is asked of it there.

The launch host sends this package's own code over SSH; there, everything from `runs` down is as it is here.

In reading order:

    travelling_code   the part of this package that can run on another machine
    requests          what a remote launcher can be asked
    remote_launcher   run that code on a host, and copy its output to this terminal
    control           control a run there
    program           do there what is asked
    planted_runs      which runs were started from this machine, and are controlled from another
    planting          start a controller on one host, and an agent on each, and watch until all ranks run
    fetching          take the logs of a run from there
"""
