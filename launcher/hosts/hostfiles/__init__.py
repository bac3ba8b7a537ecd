"""Read hostfiles: those of other launchers, and `launch`'s own format.

A line means the same whichever tool it was written for; a line that two tools read differently is an error.
So there is one grammar (`lines`).
"""

from launcher.hosts.hostfiles.reading import parse_hostfile, parse_hosts, read_hostfile

__all__ = ["parse_hostfile", "parse_hosts", "read_hostfile"]
