"""The connectors that come with riverrun, as a pipeline file declares them."""
