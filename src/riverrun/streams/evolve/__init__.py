"""A stream that changes: code versions, what a change means for its state, replay and cutover."""
