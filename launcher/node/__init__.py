"""What runs on every node: standard library only, Python 3.8 or newer, nothing of ours above it.

Nothing needs to be installed there: `launcher.transports.bootstrap` sends these modules over the connection.

    guardian     waits for the supervisor and cleans up if it dies
    supervisor   the conversation with the launcher, and the lease
    inquiry      what the launcher asks before a run:
      facts        gathers what follows, in a child
      gpus         what the GPU tool says, and who is on the GPUs
      visible_gpus which of them the ranks see
      xids         GPU faults in the kernel's log
      machine      memory, limits, disks
      network      addresses, routes, ports, probes
      slurm        what Slurm gives the run here
      leftovers    processes of other runs
      environment  --setup, --venv and --conda
      pythons      the search for a Python that has torch
    shim         the parent of plain commands
    torchrun     the parent of the other ranks, in the Python that has torch
    ranks        the ranks' start, exit codes and
      kills        whether the kernel killed one for lack of memory
      stacks       where they stand, when they hang
    workers      how processes are started, and the run's folder
    outlet       what leaves this node, no faster than the network takes it
    ladder       how a run is ended, step by step
    processes    which processes belong to a run
    ledger       what the guardian must know if the supervisor dies
    kernel_log   the kernel's log, record by record
    loop         a small event loop
    clock        seconds that count suspend
    messages     the wire format
    notation     JSON, and
    signals      the signal module, both without the imports that would double the start
    relay        under srun and pdsh, below the guardian: carries its bytes; sent alone, and under pdsh with clock and
      mailbox      where it gets what the launcher says
      login        whether the launcher's machine still answers
    mail         under pdsh: brings a relay what the launcher says; sent with mailbox
"""
