"""What a user declares: events, topics, and the small values they are made of. Nothing here talks to a server."""
