"""Turn what the user asked for into the arguments and environment of every process.

Everything here is a pure function of its arguments: it starts no process, and reads no socket, clock or environment.

In reading order:

    tree                the code that is sent, and where it lies on a host
    job                 Job: what the user asked for
    facts               what a node reports about itself, as typed values
    variables           what the ranks get in their environment, and what is never forwarded
    activation          --setup, --venv and --conda, as steps for the node
    plan                job, hosts and facts become the argv of every node
    plan_record         a plan as JSON values
    start_order         what the supervisor of a node is told to start
    sbatch_script       the same job as a script for Slurm
    slurm_allocation    the hosts and GPUs of the Slurm job that `launch` runs in
"""
