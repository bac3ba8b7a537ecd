"""Test hosts for tests that need several machines: Linux namespaces, their faults, and the processes in them."""
