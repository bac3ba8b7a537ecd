"""Measure speed and memory: each measure against another tool or a limit, in the same run, on this machine."""
