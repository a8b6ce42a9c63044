"""Postgres: checks before a database is captured, and Debezium's configuration."""
