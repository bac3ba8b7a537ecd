"""Stands in for torch, whose import takes seconds: nothing of it is here but a torchrun that starts processes."""
