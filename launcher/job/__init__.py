"""Turn what the user asked for into the arguments and environment of every process.

Everything here is a pure function of its arguments: it starts no process, and reads no socket, clock or environment.
"""
