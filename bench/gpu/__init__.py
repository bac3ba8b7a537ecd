"""python -m bench gpu [PART...]: everything that needs a GPU, through the commands that a user types.

Without a GPU, or with too few of them, a part runs a form of itself on CPUs, and the table says so.
docs/gpu.md has the parts and the latest results.

In reading order:

    part          what a part is, and what it can report
    trial         the processes of one part: a time limit for all of them, and none that stays
    hardware      what is installed: GPUs, driver, torch, CUDA, NCCL
    queries       what the machine's tools say, kept in files
    ranks         what the ranks do in the parts that need a special program
    as_host       a rank that is a host of its own for NCCL, so that several fit on one GPU
    weights       compare two models to the last bit
    checks        `launch check`: its facts, demo hosts, a busy GPU
    collectives   `test-distributed` with NCCL, and all GPUs under load
    speed         the trainer against a plain loop
    steps         the trainer: resuming, and warm starts
    faults        what a user sees when something goes wrong on a GPU
    one_gpu       the trainer in each way of parallel on ranks that share one GPU, and what ends it
    table         all parts, and the command line
"""
