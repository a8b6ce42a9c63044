"""The running platform: the processes beside the streams, and how they stop."""
