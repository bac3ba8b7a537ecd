"""What carries the bytes of guardians under srun and pdsh. Each module is sent as text, without the others of a node.

In reading order:

    launcher_probe    whether the launcher's machine still answers
    relay_socket      under pdsh: where a relay gets what the launcher says
    relay_input       under pdsh: brings it there
    relay             one process of srun or pdsh, and the processes that it starts for the launcher
"""
