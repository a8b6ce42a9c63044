"""The declarations of the connectors that come with riverrun, one file per system. What runs them is in `riverrun.connectors`."""
