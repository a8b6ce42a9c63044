"""Proof: a stream computed again in batch and compared with what it has written."""
