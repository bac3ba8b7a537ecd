"""Bytes to one process on one host. Nothing here knows what is said.

In reading order:

    base               Transport and Channel: what every way gives
    process_channel    a channel over the pipes of a process on this machine
    local              this machine, without SSH
    bootstrap          how the node's code gets to a node that has nothing but Python
    ssh/               each host by itself: fabric, the system's ssh
    relayed/           one process for all hosts: srun, pdsh
    registry           every transport by its name, and which one is the default
"""
