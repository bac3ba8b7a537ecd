"""The answers to what the launcher asks a node before a run, or when it has failed.

Nothing here starts a rank or blocks the supervisor.
"""
