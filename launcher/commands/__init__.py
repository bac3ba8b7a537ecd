"""The commands besides a run. Each module is one of them, and imports none of the others."""
