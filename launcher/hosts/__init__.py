"""The hosts of a run: how they are written, read, selected and displayed. Nothing here contacts one."""
