"""Ways to reach people: SMS, and whatever Apprise knows."""
