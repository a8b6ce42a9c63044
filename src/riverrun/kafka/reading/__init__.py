"""Readers without a consumer group: offset ranges, bulk reads, tails, the newest records."""
