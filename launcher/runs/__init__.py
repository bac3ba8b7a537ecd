"""The life of a run, from inspecting its nodes to the last message. Nothing here reads an option or prints itself."""
