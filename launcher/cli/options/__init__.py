"""The options of all commands: their table, their help, launcher.toml, and their values as a command gets them."""
