"""Hosts as people have them today: the files of other launchers and our own, read and written.

A line means the same whoever it was written for, and what two tools read differently is refused.
So there is one grammar (`lines`) and a YAML list; which tool a file looks like (`dialects`) is only shown.

In reading order:

    lines        one line of a hostfile -> a host
    dialects     which tool a file was written for
    writing      hosts in another tool's words
    yaml_list    hosts as a YAML list
    reading      a file, a list on the command line, or stdin -> hosts
"""

from launcher.hosts.hostfiles.lines import Colon
from launcher.hosts.hostfiles.reading import parse_hostfile, parse_hosts, read_hostfile
from launcher.hosts.hostfiles.writing import TARGETS, write_hosts

__all__ = ["TARGETS", "Colon", "parse_hostfile", "parse_hosts", "read_hostfile", "write_hosts"]
