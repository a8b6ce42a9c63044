"""Database tables kept equal to the rows of a stream or a topic: the configuration of Debezium's JDBC sink."""
