"""The protocol between `launch` and the supervisors of all nodes: what is sent, what may come back, each node's state.

Nothing here knows what a run is or prints anything.
"""
