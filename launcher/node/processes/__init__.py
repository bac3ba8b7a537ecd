"""How the processes of a run are started, watched, counted and stopped on a node. No connection is handled here."""
