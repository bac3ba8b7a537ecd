"""The commands besides a run. Each module is one of them, and imports none of the others.

In reading order:

    ps            what there is to say of each run
    logs          print what a run has written
    attach        show a run until it ends
    wait          wait until a run has ended
    stop          end a run as Ctrl-C would
    sync          send the code to all hosts, or compare it
    check         run every check, but no training, and show a table
    clean         list and stop what earlier runs left behind
    clean_code    remove the code that runs have left
    exec          run a plain command on every host
    plots         draw results of test-distributed as pictures
    demo_hosts    SSH hosts on loopback, for `launch demo`
"""
