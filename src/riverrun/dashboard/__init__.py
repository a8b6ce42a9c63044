"""Dashboards: tiles become questions, their answers reach the browser as they change."""
