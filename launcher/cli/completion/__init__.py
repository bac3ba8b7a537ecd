"""Completion in bash, zsh and fish: what a shell asks at each Tab, and what it is answered.

    command        `launch completion SHELL` prints the script with which a shell asks
    answer         the entry point: what was typed -> the words that may come, as that shell reads them
    typed_line     what was typed -> what may be typed at the cursor
    vocabulary     all commands and options, kept on the disk: to ask click would take four times as long
    names          the hosts and runs of this machine

An answer contacts nobody and starts nothing. At each Tab little may be imported: `vocabulary` alone imports click, when
launch is another one than the last time, and the values here are named tuples, since dataclasses take 20 ms.
"""

QUESTION = "__complete"  # as the first word, what follows is a question: the shell, and what was typed
