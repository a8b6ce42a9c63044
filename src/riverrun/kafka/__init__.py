"""Producers, consumers, topics, groups and offsets. The only folder that imports the Kafka client library."""
