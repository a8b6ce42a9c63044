"""Streams on Spark: from a pipeline file to queries that run, and what they tell while they do."""
