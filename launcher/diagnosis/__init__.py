"""Explain failures: what was seen of one -> its cause in words. Only `flight_recorder` does I/O: it reads files.

In reading order:

    signatures             known lines of torch, NCCL, CUDA, Python and SSH, and what to do about them
    tracebacks             the last frame and the error of a Python traceback
    collective_timeouts    which rank was missing from a collective that timed out
    exit_codes             what an exit code, a signal or a lost connection explains by itself
    failure                Failure: one thing that failed, and its role in the run
    cause                  Cause: the failure that a run is blamed on, from all of these
    failure_signature      what two failures must have in common to be the same one again
    nccl_ras               the errors and warnings of NCCL's RAS
    stacks                 the Python stacks of running ranks, equal ones folded
    flight_recorder        whether a dump of NCCL's flight recorder is plain data

`launcher.errors` describes how a failure reaches the screen.
"""
