"""The kinds of tiles: what they may be given, their SQL, their figures."""
