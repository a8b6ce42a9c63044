"""Streams at work: the Spark session, the exactly-once sink, progress, metrics, failures."""
