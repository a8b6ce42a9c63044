"""Figures pushed to browsers as they change."""
