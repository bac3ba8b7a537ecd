"""The relays, which carry the streams of guardians under srun and pdsh. They are sent without the node's other code."""
