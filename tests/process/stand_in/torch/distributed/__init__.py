"""Where torchrun lives."""
