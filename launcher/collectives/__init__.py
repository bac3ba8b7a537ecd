"""What each rank of `test-distributed` does: checked collectives, a DDP step, bandwidth, pairs of hosts, and
the speed of each device under load.

Like `launcher.distributed`, it needs only torch, the standard library and Python 3.8.
"""
