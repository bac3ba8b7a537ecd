"""The transport of a controller that can't log in: agents on the hosts dial it, and start processes for it.

The program on the hosts is launcher/node/agents.
"""
