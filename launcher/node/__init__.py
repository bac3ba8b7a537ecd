"""What runs on every node: standard library only, Python 3.8 or newer, nothing of ours above it.

Nothing needs to be installed there: `launcher.transports.bootstrap` sends these modules over the connection.
A start is waited for on every host, so imports are few, and what is seldom needed is imported where it is used.

In reading order:

    signals       the signal module, and
    fast_json     JSON, both without the imports that would double the start
    clock         seconds that count suspend
    messages      the wire format; the launcher imports it too, and nothing else from here
    loop          a small event loop
    send_queue    what leaves this node, no faster than the network takes it
    kernel_log    the kernel's log, record by record
    processes/    how processes are started, watched, counted and ended
    facts/        what the launcher asks before a run
    supervisor    what is said with the launcher, and the lease
    guardian      starts the supervisor, waits for it, and cleans up if it dies
    relays/       under srun and pdsh, below the guardian: carries its bytes; sent alone
"""
