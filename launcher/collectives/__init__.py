"""What each rank of `test-distributed` does: checked collectives, a DDP step, bandwidth, and pairs of hosts.

Like `launcher.distributed`: torch and the standard library, and nothing beyond Python 3.9.
"""
