"""Alerts: rules over rows, episodes, and who is told of them when. The state is in a topic; nothing here needs Spark."""
