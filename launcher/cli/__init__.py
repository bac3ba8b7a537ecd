"""The command line: the only package that uses click and rich, and that reads os.environ on the launch host.

One file per command, and the modules that they share.
"""
