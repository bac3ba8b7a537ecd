"""What the commands besides a run do. No module imports another one of these."""
