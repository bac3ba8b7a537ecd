"""Hosts of our own for tests that need several machines: namespaces, their faults, and what runs in them."""
