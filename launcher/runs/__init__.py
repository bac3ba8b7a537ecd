"""The life of a run, from inspecting its nodes to the last message. Nothing here reads an option or prints itself.

`execution` runs a job to its end: `run` makes attempts, each an `attempt`, which `hangs` watches. What judges it:
`judge`, then `policy`. What stands before the next one: `hosts_and_spares`, and the search for the host to blame
(`bisection`, `culprits`).
"""
