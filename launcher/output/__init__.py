"""What `launch` prints while hosts are at work, and what it writes to disk.

It receives lines and host names, and knows nothing about plans and connections.
"""
