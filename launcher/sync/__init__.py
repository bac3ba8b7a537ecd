"""The code of a run, from this machine to every node: which files go, what is sent, and the proof that all are equal.

In reading order:

    names         how messages show the names of files, and which two would be one file on some disks
    git           what git says about a directory: its repository, and the files there
    launchignore  the lines of .launchignore, as git takes them
    candidates    which files a repository, or a directory without one, has to send, and which it leaves out
    links         which symbolic links lead to a place that is sent
    left_out      how large the files and directories are that stay on this machine
    selection     which files of a directory are sent
    small_files   the contents of small files, kept in memory
    snapshot      the content of those files, by its hashes
    words         the same in words, and the refusal of too much
    contents      files by their hash, to send them
    pieces        what is missing on the hosts, cut into pieces and compressed
    answers       what the nodes have said
    introduction  connect the nodes in chains, in which each passes pieces on
    proofs        which nodes have the code, and what is wrong with the others
    delivery      send what is missing to all nodes of a session, and take their proof
"""
