"""What the commands besides a run do, the plots of test-distributed and the demo's hosts.

No module imports another one of these.
"""
