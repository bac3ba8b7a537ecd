"""The transport of a controller that can't log in: agents on the hosts dial it, and start processes for it.

The program on the hosts is launcher/node/agents.

In reading order:

    credentials    the certificate of a run, and one token for each agent
    link           the connection of one agent, and the channels through it
    doorway        accepting connections, most of which may be strangers'
    transport      one attempt's way to the hosts
    hub            all agents of a run: which are connected, and what they are told
"""
