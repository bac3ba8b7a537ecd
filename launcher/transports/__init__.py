"""The transports: each starts a process on a host and carries its streams. None knows what the bytes mean."""
