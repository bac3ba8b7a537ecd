"""The command line: the only package that uses click and rich, prints on the launch host and reads os.environ there.

One file per command, and the modules that they share. In reading order:

    command_table       the names of all commands, with their examples
    script_words        refuse words after the options that can't be a script
    error_lines         an error as one line and its fix
    nameless_user       a user id without a name, as in some containers
    file_owners         who else can write a file that was found, not named
    defaults            launcher.toml: where the value of an option comes from
    code_folder         the value of --sync
    help                the options in groups and the examples, for --help
    option_sources      which of two values counts, and where it came from
    trailing_options    options of `launch` that were typed after the script
    option_errors       errors of click, as one line and its fix
    option_groups       what a command's options say -> frozen values
    options             the options that several commands share, for click
    job_request         the options of a job and the words after them -> the Job
    tree_request        --sync: the code of a job
    prompts             ask for passwords and passphrases, once for all hosts
    state_directory     what this machine remembers: hosts that failed, and runs that were started
    run_origin          who typed what, and where, for run.json
    detachment          --detach: out of the terminal
    sessions            the sessions of commands that start no ranks
    runner              from a job and its hosts to a run on the console
    selection           which hosts, and which transport
    planting            --detach: a controller and agents on the hosts
    run                 launch SCRIPT
    singlenode          launch singlenode
    node                launch node
    run_rows            which runs there are, and what there is to say of each, asked where it is controlled
    run_place           the run that a command names, here or elsewhere
    ps                  launch ps
    attach              launch attach
    logs                launch logs
    wait                launch wait
    stop                launch stop
    fetch               launch fetch
    check               launch check
    sync                launch sync
    clean               launch clean
    exec                launch exec
    hosts               launch hosts
    sbatch              launch sbatch
    demo                launch demo
    bisection           test-distributed: find the hosts that fail
    test_distributed    test-distributed
    main                the entry points
"""
