"""The protocol with the supervisors of all nodes: what is sent, what may come back, and what a node is at.

Nothing here knows what a run is, or prints.

In reading order:

    facts_message  a node's messages -> its facts, checked
    schema        the form that each message of a node must have
    expected      which messages a node may send now
    terms         what all nodes are told alike, and how long both sides wait
    connection    one supervisor, from connecting to its census, in threads
    node_state    events of a connection -> what is known of its node
    pool          all connections, in asyncio, and the leases
    signals       Ctrl-C and its like, for all sessions of a loop
    session       Session: all nodes asked, started and ended together
"""
