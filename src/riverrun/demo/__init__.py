"""The use cases that come with riverrun: finding one, copying it into a project, and running it with all that it needs."""
