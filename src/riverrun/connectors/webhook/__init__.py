"""Rows to an HTTP address."""
