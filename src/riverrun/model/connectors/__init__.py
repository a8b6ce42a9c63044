"""Declarations of the connectors that come with riverrun: one file per system. `riverrun.connectors` runs them."""
