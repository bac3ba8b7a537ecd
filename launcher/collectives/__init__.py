"""What each rank of `test-distributed` does: checked collectives, a DDP step, bandwidth, and pairs of hosts.

Like `launcher.distributed`, it needs only torch, the standard library and Python 3.9.

In reading order:

    units         numbers with their units
    watch         a time limit for each step
    operations    collectives under the names that the installed torch has for them
    gradients     one step of DistributedDataParallel against a single process
    checks        whether the ranks can communicate, and receive what was sent
    bandwidth     speed of the collectives, by size
    matrix        latency and bandwidth between each pair of hosts: order, table, slow hosts
    pairs         measure each pair of hosts
    results       the summary line, and results.json
"""
