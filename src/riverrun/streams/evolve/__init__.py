"""Changes of a stream: code versions, what a change means for its state, replay and cutover."""
