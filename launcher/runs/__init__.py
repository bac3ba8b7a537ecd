"""The life of a run, from the first question to the last word. Nothing here reads an option, or prints by itself.

In reading order:

    inspection    what all nodes are asked before a run, and what follows from it
    failures      what each rank and node did -> the failures, in order
    others        what became of the ranks beside the one that is blamed
    verdict       all that was heard so far -> whether the run has failed, and why
    report        the words at the end of a run
    early_exits   what is said live of ranks that end well while others go on
    code_version  which commit of the user's code it is
    hangs         Ctrl-\\ and --hang-timeout: the stacks of all ranks
    run           Run: inspect, plan, start, watch, stop, report
"""
