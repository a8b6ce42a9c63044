"""Tables of a database kept equal to the rows of a stream or a topic: what Debezium's JDBC sink is told."""
