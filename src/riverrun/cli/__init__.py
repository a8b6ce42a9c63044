"""The `riverrun` command: one file per command group, no logic of its own."""
