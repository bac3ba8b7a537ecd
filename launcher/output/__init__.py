"""What the launch host prints while hosts are at work, and what it writes to disk.

It gets lines and the names of hosts, and knows nothing of plans and connections.

In reading order:

    lines         whole lines out of a rank's stream, progress bars made readable
    style         the weight of a message of `launch`, and its lines broken between words
    display       each line with a prefix such as `[node2:5] `, or as JSON
    traceback_filter  which tracebacks the screen gets, when ranks fail one after the other
    terminal      a thread that writes to the terminal, so that a slow one never stalls a run
    exit_race     torchrun's page of frames at the end of a good run
    node_log      all output of one node: its log, and what the screen gets
    folding       equal output of several hosts, shown once
    run_folder    logs/RUN: where it is, who may write it; the keys of run.json are those of `runs.run`
"""
