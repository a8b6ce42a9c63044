"""Postgres: what is checked before it is followed, and how Debezium is told to follow it."""
