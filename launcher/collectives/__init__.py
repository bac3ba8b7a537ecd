"""What each rank of `test-distributed` does: checked collectives, a DDP step, bandwidth, and pairs of hosts.

Like `launcher.distributed`: torch and the standard library, and nothing beyond Python 3.9.

In reading order:

    units         numbers with their units
    watch         a time limit for each step
    operations    collectives under the names that this torch has for them
    gradients     one step of DistributedDataParallel against a single process
    checks        that the ranks can talk, and that what arrives is what was sent
    bandwidth     how fast the collectives are, by size
    matrix        what every two hosts have between them: order, table, who is slow
    pairs         latency and bandwidth between every two hosts
    results       the last line, and results.json
"""
