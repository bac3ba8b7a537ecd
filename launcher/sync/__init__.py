"""The code of a run, from this machine to every node: which files go, what is sent, and the proof that all are equal.

In reading order:

    words       how messages describe the code
    contents    the contents of files, by their hash
    pieces      what is missing, cut into pieces and compressed
    delivery    send what is missing to all nodes of a session, and take their proof
"""
