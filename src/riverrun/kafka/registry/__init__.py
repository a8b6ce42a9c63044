"""Topics whose schemas are in a registry: confluent-kafka's own client, the wire format, and the check before a deploy."""
