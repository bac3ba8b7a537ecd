"""Which hosts: how they are written, read, chosen and named. Nothing here contacts one.

In reading order:

    ranges          gpu[1-4]: one word for many names
    host            Host, and which of those that were named take part
    hostfiles/      the files of other tools, read and written
    unreachable     hosts that can't be used, those with the same reason in one line
"""
