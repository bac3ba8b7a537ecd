"""The transports: each starts a process on a host and carries its streams. None knows what the bytes mean.

In reading order:

    base               Transport and Channel: what every transport provides
    process_channel    a channel over the pipes of a process on this machine
    local              this machine, without SSH
    bootstrap          command lines that load the node's code on hosts that have nothing but Python
    loader             start a Python on a host that waits for such code
    ssh/               one SSH connection for each host: fabric, the system's ssh
    relayed/           one process on the launch host for all hosts: srun, pdsh
    agents/            a controller that can't log in: a program on each host dials it
    registry           every transport by its name, and which one is the default
"""
