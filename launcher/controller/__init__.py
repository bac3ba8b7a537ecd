"""The controller of a run on another machine than the one where `launch` was typed, and what is asked of it there.

The launch host sends this package's own code over SSH; there, everything from `runs` down is as it is here.
"""
