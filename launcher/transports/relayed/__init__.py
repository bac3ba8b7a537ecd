"""The ways on which one process of ours reaches all hosts: a relay on each host tells them apart.

In reading order:

    framing         what launcher and relays say to each other, in lines
    channel         the streams of one process under a relay
    relays          all relays of one srun or pdsh, and when nobody needs them any more
    step_lifecycle  one srun or pdsh: its channels, the hosts that it loses, its end
    srun_output     what srun prints -> why a host takes no part
    srun_step       one srun, and the threads on its streams
    srun            --transport srun: the nodes of a Slurm allocation
    pdsh_lines      lines that carry their host's name
    pdsh_output     what pdsh prints -> which host is gone
    pdsh_command    how pdsh is called, and what ends it with us
    pdsh_input      what goes to the relays: short calls of pdsh, which reads nothing for them
    pdsh_step       one long pdsh, and the threads on its streams
    pdsh            --transport pdsh: SSH through pdsh
"""
