"""What a user can ask for besides a run. Each module is one thing to ask for, and knows no other.

In reading order:

    check         every check, as a table, and no run
    clean         what earlier runs left, named and ended
    exec          a plain command on every host
    bisection     which hosts fail together: halves of them, tried in turn
    plots         figures of test-distributed as pictures
    demo_hosts    SSH hosts on loopback, for `launch demo`
"""
