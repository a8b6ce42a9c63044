"""Topics whose schemas a registry keeps: confluent-kafka's own client, the wire format, and the check before a deploy."""
