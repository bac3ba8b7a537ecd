"""The code that runs on every node. It needs Python 3.8 or newer, and imports only the standard library and itself.

Nothing is installed on the nodes: `launcher.transports.bootstrap` sends these modules over the connection.
The launcher waits until every host has started, so modules import little; what is seldom needed is imported where used.

In reading order:

    signals       the signal module, and
    fast_json     JSON, both without the imports that would double the start time
    clock         seconds that include suspend
    own_folders   directories that no other user can fill or replace
    messages      the wire format, the only module here that the launcher imports too
    loop          a small event loop
    send_queue    the queue of messages and output for the launcher, sent as fast as the network takes them
    kernel_log    the kernel's log, record by record
    processes/    how processes are started, watched, counted and stopped
    facts/        the answers to what the launcher asks before a run
    trees/        the code of a run: files by their hash, and a directory of copies for each run
    supervisor    the process that serves the launcher, and stops the run when its lease expires
    guardian      the process that starts the supervisor, waits for it, and cleans up if it dies
    arrival       the launcher's own code on a host, for the controller of a run; sent separately
    relays/       the processes that carry a guardian's streams under srun and pdsh; sent separately
    agents/       the process that starts guardians for a controller which can't log in; sent separately
"""
