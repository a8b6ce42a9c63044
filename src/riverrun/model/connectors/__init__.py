"""The connectors that come with riverrun, as they are declared: one file per system. `riverrun.connectors` runs them."""
