"""The pipeline topology page: what flows where, live, and the details of each node."""
