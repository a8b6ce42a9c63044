"""What a cluster has, and how to change it: topics, groups, offsets."""
