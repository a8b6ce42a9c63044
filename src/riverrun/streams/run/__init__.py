"""Running streams: the Spark session, the exactly-once sink, progress, metrics, failures."""
