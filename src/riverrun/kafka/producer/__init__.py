"""Sending records."""
