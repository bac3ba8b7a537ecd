"""Start PyTorch training on several machines over SSH, without a scheduler.

On the launch host, from the lowest layer up; each package's docstring says what it is for:

    escapes          foreign text, made safe for a terminal
    private_files    files that may hold secrets
    open_files       how many files this process may have open
    clock            seconds that include suspend, and a time of day that never steps back
    wording          numbers, times and lists as text
    errors           the errors, with their exit codes
    forms            messages and files, read by the types of frozen values
    concurrency      threads and tasks whose failure is reported
    hosts/           which hosts
    node/            what runs on the nodes
    diagnosis/       symptoms of a failure -> its cause in words
    job/             what to run, to the last argument
    output/          what the launch host shows and keeps
    preflight/       facts of all nodes -> findings
    transports/      bytes to and from one process on one host
    session/         the protocol with the supervisors of all nodes
    sync/            the code of a run, from here to every node
    runs/            a run from start to report
    commands/        what other commands do: check, clean, exec, sync, stop; plots, and the hosts of the demo
    controller/      the controller of a run on another machine, and what is asked of it
    cli/             the command line

What the ranks run doesn't depend on any of that:

    distributed      one process group for trainers; a file that can be copied
    collectives/     what `test-distributed` runs
    trainer/         the built-in trainer
"""

__version__ = "0.2.0"
