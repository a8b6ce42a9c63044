"""Verification: a stream is computed again in batch and compared with what it has written."""
