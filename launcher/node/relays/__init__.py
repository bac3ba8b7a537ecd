"""The relays, which carry the streams of guardians under srun and pdsh. They are sent without a node's other code.

In reading order:

    launcher_probe     under pdsh: whether the launcher's machine still answers
    relay_socket       under pdsh: the socket at which a relay gets the launcher's lines
    relay_input        under pdsh: the task that brings them there
    relayed_process    one process that a relay has started for the launcher
    relay              the task of srun or pdsh that starts them and carries their streams
"""
