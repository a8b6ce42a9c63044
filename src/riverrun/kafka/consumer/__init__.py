"""Reading records."""
