"""The built-in trainer: a small byte-level language model, on one process or on many machines."""
