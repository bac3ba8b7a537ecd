"""The command line. click and rich live here alone; of all on the launch host only this prints and reads os.environ.

One file per command, and what they share. In reading order:

    command_table       the names of all commands
    script_words        words after the options that can be no script
    error_lines         an error in one clear line
    nameless_user       a user id without a name, as in some containers
    file_owners         who could have written a file that nobody named
    defaults            launcher.toml: where the value of an option comes from
    console             what the user sees: our words, the ranks' output, progress
    help                the options in groups, for --help
    option_sources      which of two values counts, and where it came from
    trailing_options    options after the script, which go to it
    option_errors       what click refuses, in one clear line
    option_groups       what a command's options say -> frozen values
    options             the options that several commands share, for click
    job_request         the options of a job, and the words after them -> the Job
    prompts             passwords and passphrases, asked once for all hosts
    run_origin          who typed what, and where, for run.json
    runner              from a job and its hosts to a run on the console
    selection           which hosts, and by which transport
    run                 launch SCRIPT
    singlenode          launch singlenode
    node                launch node
    check               launch check
    clean               launch clean
    exec                launch exec
    hosts               launch hosts
    sbatch              launch sbatch
    demo                launch demo
    bisection           test-distributed: which hosts it was, after a failure
    test_distributed    test-distributed
    main                the entry points
"""
