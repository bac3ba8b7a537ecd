"""What runs beside torch, in the Python of the ranks: the search for torch, torchrun, and a Python that imports it.

That Python may be of another version than the supervisor's, and it runs the user's code. So `entry` is the only module
that it is given as text; the rest comes from the archive, and nothing of it is left in sys.modules or sys.path.
"""
