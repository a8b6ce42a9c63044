"""Dead letters after they were written: find, count by reason, show, and send them back to their topics, once."""
