"""Start PyTorch training on several machines over SSH, without a scheduler.

On the launch host, from the ground up; each room says for itself what it is for:

    escapes          text of others, safe for a terminal
    private_files    files that may hold secrets
    clock            seconds that count suspend, and the time of day that never steps back
    wording          numbers, times and lists in words
    errors           what is wrong, and its exit code
    concurrency      threads and tasks that don't die unseen
    hosts/           which hosts
    node/            what runs on the nodes
    diagnosis/       what was seen -> the cause in words
    job/             what is wanted, to the last argument
    output/          what the launch host shows and keeps
    preflight/       facts of all nodes -> findings
    transports/      bytes to one process on one host
    session/         the protocol with the supervisors of all nodes
    runs/            the life of a run
    commands/        every other thing a user can ask for
    cli/             the command line

What the ranks run knows nothing of all that:

    distributed      one process group for trainers, and a file that can be copied
    collectives/     what `test-distributed` runs
    trainer/         the built-in trainer
"""

__version__ = "0.1.0"
