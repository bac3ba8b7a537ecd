"""Checkpoints: their way to the disk and back, whole at every instant.

In reading order:

    replacement  put a complete checkpoint in its place, and flush it to disk
    save_folder  a directory whose files are complete or absent
    reading      read a checkpoint as data, so that no code in it runs
    writing      write a checkpoint's files, at once or while the training continues
    checks       what all ranks see of a checkpoint, and whether it can be read
    checkpoints  save checkpoints, and resume on any number of ranks
"""
