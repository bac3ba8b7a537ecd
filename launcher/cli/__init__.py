"""The command line: the only package that uses click and rich, prints on the launch host and reads os.environ there.

One file per command, and the modules that they share.
"""
