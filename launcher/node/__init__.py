"""The code that runs on every node. It needs Python 3.8 or newer, and imports only the standard library and itself.

Nothing is installed on the nodes: `launcher.transports.archives` packs these modules, and `loading` imports them there.

The launcher imports a few of them too: `messages` anywhere, what describes code and directories in `sync` and `runs`,
and `facts.network` in `controller` (tests/unit/test_house.py lists them); ranks have `nvml` in their archive.
"""
