"""Tiles: their checks, their SQL, their data."""
