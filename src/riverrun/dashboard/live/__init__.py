"""Pushes data to browsers as it changes."""
