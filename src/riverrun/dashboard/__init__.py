"""Dashboards: tiles become queries, and their results are pushed to browsers as they change."""
