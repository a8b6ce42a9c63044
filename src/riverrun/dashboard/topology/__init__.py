"""The pipeline picture: what flows where, live, and the details of each part."""
