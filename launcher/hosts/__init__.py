"""The hosts of a run: how they are written, read, selected and displayed. Nothing here contacts one.

In reading order:

    ranges          lists and ranges of names, such as gpu[1-4]
    host            Host, and the filters that select which hosts take part
    hostfiles/      the hostfiles of other tools, read and written
    unreachable     hosts that can't be used, grouped by reason
"""
