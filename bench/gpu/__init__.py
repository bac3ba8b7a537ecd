"""python -m bench gpu [PART...]: everything that needs a GPU, through the commands that a user types.

Without a GPU, or with too few of them, a part runs a form of itself on CPUs, and the table says so.
docs/gpu.md has the parts and the latest results; table.py starts them, trial.py has the processes of one.
"""
