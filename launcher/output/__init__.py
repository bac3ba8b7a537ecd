"""What the launch host shows and keeps of a run. Nothing here knows what a run is.

In reading order:

    lines         whole lines out of a rank's stream, progress bars made readable
    display       `[node2:5] ` before each line and its colour, or JSON
    terminal      the terminal's own thread, which never stalls a run
    node_log      all output of one node: its log, and what the screen gets
    folding       equal output of several hosts, once
    run_folder    logs/RUN: where it is, who may write it, and run.json
"""
