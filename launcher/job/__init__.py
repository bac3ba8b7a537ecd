"""What is wanted, to the last argument. Pure: no process, socket, clock or environment.

In reading order:

    job                 Job: what the user asked for
    facts               what a node says of itself, and what becomes of its words
    variables           what the ranks get in their environment, and what is never forwarded
    activation          --setup, --venv and --conda, as orders for the node
    plan                job, hosts and facts become the argv of every node
    sbatch_script       the same job as a script for Slurm
    slurm_allocation    the hosts and GPUs of the Slurm job that we are in
"""
