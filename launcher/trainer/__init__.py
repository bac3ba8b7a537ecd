"""The built-in trainer: a small model, on one process or on many machines."""
