"""What the launch host shows and keeps: lines, the terminal, equal output folded, the folder of a run.

In reading order:

    lines         a prefix on every line, a log for every node, and the terminal's own thread
    folding       equal output of several hosts, once
    run_folder    logs/RUN: where it is, who may write it, and run.json
"""
