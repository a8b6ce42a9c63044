"""The servers riverrun runs: how each starts, is known to be ready, and stops."""
