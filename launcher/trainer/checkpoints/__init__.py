"""Checkpoints: their way to the disk and back, whole at every instant."""
