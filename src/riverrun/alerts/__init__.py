"""Alerts: rules over rows, incidents, and their notifications. The state is in a topic; nothing here needs Spark."""
