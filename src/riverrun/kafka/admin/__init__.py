"""Describe and change a cluster: topics, groups, offsets."""
