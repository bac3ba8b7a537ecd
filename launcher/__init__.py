"""Start PyTorch training on several machines over SSH, without a scheduler."""

__version__ = "0.1.0"
