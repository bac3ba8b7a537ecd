"""The transports that reach all hosts through one process on the launch host, srun or pdsh, and a relay on each host.

srun and pdsh have one stdin and one stdout for all hosts. The relay, a small program that is sent to each host, starts
processes there and carries their streams in lines that name a channel.

In reading order:

    framing         the lines that launcher and relays exchange
    channel         the streams of one process under a relay
    relays          the relays of one srun or pdsh: which run, which are lost, which are in use
    step_lifecycle  one srun or pdsh from start to end: its channels, hosts that it loses
    srun_output     what srun prints -> why a node can't be used
    srun_step       one srun, and the threads on its streams
    srun            --transport srun: the nodes of a Slurm allocation
    pdsh_lines      whole lines of what pdsh prints
    pdsh_output     what pdsh prints -> which host is gone
    pdsh_command    how pdsh is called, and stopped when `launch` ends
    pdsh_input      input for the relays, by short calls of pdsh, which itself passes on none
    pdsh_step       one long pdsh, and the threads on its streams
    pdsh            --transport pdsh: SSH through pdsh
"""
