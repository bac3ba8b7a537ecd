"""Measures of speed and weight: each against a peer or a limit, in the same run, on this machine."""
