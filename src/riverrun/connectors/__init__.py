"""Connectors: from databases, devices and files into topics, and out again. One folder per system, loaded on first use."""
