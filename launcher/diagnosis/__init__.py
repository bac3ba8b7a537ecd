"""Explain failures: what was seen of one -> its cause in words. Only `flight_recorder` does I/O: it reads files.

`launcher.errors` describes how a failure reaches the screen.
"""
