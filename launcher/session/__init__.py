"""The protocol between `launch` and the supervisors of all nodes: what is sent, what may come back, each node's state.

Nothing here knows what a run is or prints anything.

In reading order:

    facts_message  a node's messages -> its facts, validated
    schema        the required form of each message from a node
    expected      which messages a node may send at the moment
    terms         what every node is told, and how long both sides wait
    connection    the connection to one supervisor, from login to census, in threads
    node_state    events of a connection -> the state of its node
    pool          all connections, in asyncio, and the leases
    signals       Ctrl-C and other signals, for all sessions of an event loop
    session       Session: asks, starts and stops all nodes together
"""
