"""What was seen of a failure -> its cause in words. Only `flight_recorder` does I/O: it reads files.

In reading order:

    signatures             known lines of torch, NCCL, CUDA, Python and SSH, and what to do about them
    tracebacks             the last frame and the error of a Python traceback
    collective_timeouts    which rank was missing from a collective that timed out
    exit_codes             what an exit code, a signal or a lost connection says by itself
    failure                Failure: one thing that failed, and what it is to the run
    cause                  Cause: the first failure of a run, from all of these
    stacks                 the Python stacks of living ranks, equal ones folded
    flight_recorder        whether a dump of NCCL's flight recorder is plain data

Who becomes what on the way to the screen stands in `launcher.errors`.
"""
