"""The relays, which carry the streams of guardians under srun. They are sent without the node's other code."""
