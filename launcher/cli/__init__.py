"""The command line: the only package that uses click and rich, prints on the launch host and reads os.environ there.

One file per command, and the modules that they share. In reading order:

    command_table       the names of all commands, with their examples
    script_words        refuse words after the options that can't be a script
    error_lines         an error as one line and its fix
    nameless_user       a user id without a name, as in some containers
    file_owners         who else can write a file that was found, not named
    defaults            launcher.toml: where the value of an option comes from
    console             what the user sees: messages, output, progress
    help                the options in groups and the examples, for --help
    option_sources      which of two values counts, and where it came from
    trailing_options    options of `launch` that were typed after the script
    option_errors       errors of click, as one line and its fix
    option_groups       what a command's options say -> frozen values
    options             the options that several commands share, for click
    job_request         the options of a job and the words after them -> the Job
    prompts             ask for passwords and passphrases, once for all hosts
    state_directory     where the launch host remembers hosts that failed and runs that were started
    run_origin          who typed what, and where, for run.json
    logout              whether this system ends the processes of a user who logs out
    detachment          --detach: out of the terminal
    runner              from a job and its hosts to a run on the console
    selection           which hosts, and which transport
    run                 launch SCRIPT
    singlenode          launch singlenode
    node                launch node
    log_printer         the lines of a run's logs, on the terminal
    run_end             how a run ended that another process controlled
    ps                  launch ps
    attach              launch attach
    logs                launch logs
    wait                launch wait
    stop                launch stop
    check               launch check
    clean               launch clean
    exec                launch exec
    hosts               launch hosts
    sbatch              launch sbatch
    demo                launch demo
    bisection           test-distributed: find the hosts that fail
    test_distributed    test-distributed
    main                the entry points
"""
