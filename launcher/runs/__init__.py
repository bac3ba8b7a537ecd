"""The life of a run, from inspecting its nodes to the last message. Nothing here reads an option or prints by itself.

In reading order:

    inspection    what all nodes are asked before a run, and what follows from it
    failures      what each rank and node did -> the failures, in order
    others        what happened to the ranks other than the one that is blamed
    verdict       all that nodes have reported -> whether the run has failed, and why
    bisection     which groups of hosts to test to find those that fail, alone or together
    policy        what follows a failed attempt, and why
    report        the messages at the start and the end of a run
    early_exits   the message about ranks that succeed while others still run
    settled       whether all ranks have run for a while
    code_version  the git commit of the user's code
    hangs         Ctrl-\\ and --hang-timeout: the stacks of all ranks
    nccl_ras      what NCCL's RAS knows of a run that may hang
    hang_watch    whether no rank has printed for too long
    result        how an attempt ended, as a value and for run.json
    gpu_memory    whether the GPUs are as free as before the first attempt
    fence         how long a host that can't be asked may still have living ranks
    run_options   the options of a run that belong to no job
    learned       what a run has learned from its attempts so far
    attempt       Attempt: inspect, plan, start, watch, stop, report
    state_directory  where a machine remembers hosts that failed and runs that were started
    incident_log  what went wrong with which host in the last runs
    lineup        which hosts a run uses, and which spares wait
    run_list      which runs were started on this machine, and whether they still run
    run_end       how a run ended that another process controlled
    outcomes      how an attempt ended -> what that means for what follows
    run           Run: attempts, until one succeeds or another would be pointless
    culprits      the runs that test groups of hosts
    notification  --notify: a command of the user's, when a run ends or is started again
    logout        what a logout takes from a run that continues
    execution     run a job to its end, whoever drives it
"""
