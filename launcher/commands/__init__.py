"""What the commands besides a run do, and the page of a run."""
