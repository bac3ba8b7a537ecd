"""The code of a run, from this machine to every node: which files go, what is sent, and the proof that all match."""
