"""The relays, which carry the streams of guardians under srun and pdsh. They are sent without the node's other code.

In reading order:

    launcher_probe     under pdsh: whether the launch host still responds
    relay_socket       under pdsh: the socket on which a relay receives the launcher's lines
    relay_input        under pdsh: the task that delivers them
    relayed_process    one process that a relay has started for the launcher
    relay              the task of srun or pdsh that starts them and carries their streams
"""
