"""What runs on every node: standard library only, Python 3.8 or newer, nothing of ours above it.

Nothing needs to be installed there: `launcher.shipping` sends these modules over the connection.

    guardian     waits for the supervisor and cleans up if it dies
    supervisor   owns the processes of a run on this node, and talks to the launcher
    outlet       what leaves this node, no faster than the network takes it
    workers      how the processes of a run are started and watched
    pythons      the search for a Python that has torch
    facts        what this node says of itself
    ladder       how a run is ended, step by step
    processes    which processes belong to a run
    messages     the wire format
    notation     JSON, and
    signals      the signal module, both without the imports that would double the start
"""
