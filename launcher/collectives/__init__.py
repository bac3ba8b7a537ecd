"""What each rank of `test-distributed` does: checked collectives, a DDP step, bandwidth, and pairs of hosts.

Like `launcher.distributed`, it needs only torch, the standard library and Python 3.9.
"""
