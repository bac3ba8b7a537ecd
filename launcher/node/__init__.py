"""The code that runs on every node: standard library only, Python 3.8 or newer, and nothing else of launcher's.

Nothing is installed on the nodes: `launcher.transports.bootstrap` sends these modules over the connection.
The launcher waits until every host has started, so imports are few: what is seldom needed is imported where it is used.

In reading order:

    signals       the signal module, and
    fast_json     JSON, both without the imports that would double the start
    clock         seconds that count suspend
    messages      the wire format; the launcher imports it too, and nothing else from here
    loop          a small event loop
    send_queue    messages and output on their way to the launcher, no faster than the network takes them
    kernel_log    the kernel's log, record by record
    processes/    how processes are started, watched, counted and ended
    facts/        the answers to what the launcher asks before a run
    supervisor    the process that serves the launcher, and ends the run when its lease is over
    guardian      the process that starts the supervisor, waits for it, and cleans up if it dies
    relays/       under srun and pdsh, the processes that carry a guardian's streams; sent by themselves
"""
