"""The answers to what the launcher asks a node before a run, or when it has failed.

Nothing here starts a rank or blocks the supervisor.

In reading order:

    links           round trip and packet loss of a connection
    network         addresses, routes, ports, probes
    visible_gpus    which GPUs the ranks will see
    slurm           which CPUs and GPUs Slurm gives the run here
    cpus            how many CPUs the run may use
    gpus            the GPUs, from nvidia-smi or rocm-smi, and the processes on them
    xids            GPU faults in the kernel's log
    machine         memory, limits, disks
    leftovers       processes of other runs
    gathering       all of these in one answer, from a child process
    code            the Python files of the run, as hashes
    pythons         the search for a Python that has torch
    packages        what is installed for it
    setup           --setup, --venv and --conda
    nccl_ras        what NCCL knows of a run that may hang
    saves           whether the ranks have saved a checkpoint
    shared_directory  whether a directory is the one that node 0 sees
    inspection      takes each question, and sends its answer
"""
