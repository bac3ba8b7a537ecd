"""The built-in trainer: a small model, in one process or on many hosts. It doesn't depend on `launch`."""
