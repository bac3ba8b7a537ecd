"""How bytes get to a node. One method per transport is the whole difference: `open`."""
