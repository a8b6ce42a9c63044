"""Streams on Spark: from a pipeline file to running queries, and the progress they report."""
