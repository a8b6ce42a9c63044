"""The servers riverrun runs: how each starts, becomes ready, and stops."""
