"""What `launch` prints while hosts are at work, and what it writes to disk.

It receives lines and host names, and knows nothing about plans and connections.

In reading order:

    lines         a rank's stream cut into whole lines, with readable progress bars
    view          where the streams of a command lead: to a terminal here or elsewhere, a file, a pipe
    style         how a message of `launch` looks on a terminal, and where its lines break
    display       each line with a prefix such as `[node2:5] `, or as JSON
    traceback_filter  which tracebacks the screen shows, if ranks fail one after the other
    terminal      a thread that writes to the terminal, so that a slow one never stalls a run
    exit_race     torchrun's page of stack frames at the end of a successful run
    disk_writer   a thread that writes to the disk of the logs, so that a slow one never stalls a run
    disk_space    whether enough of that disk is free
    live_output   what the logs leave out, in memory, for `launch attach`
    node_log      all output of one node: its log, and what the screen gets
    transcript    what `launch` itself says, in launch.log
    log_reader    the logs of a run, while it runs or later
    folding       equal output of several hosts, shown once
    run_folder    logs/RUN: where it is, who may write it; `runs` has the keys of run.json
    screen        what a run needs of the screen
    console       what the user sees: messages, output, progress
    log_printer   the lines of a run's logs, on the terminal
    notice        messages and errors while no console is open
"""
