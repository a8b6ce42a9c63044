"""Dead letters after they were written: found, counted by reason, shown, and sent back to where they came from, once."""
