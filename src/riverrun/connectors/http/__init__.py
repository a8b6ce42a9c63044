"""Records by HTTP: `POST /topics/NAME` answers when Kafka has them (docs/http-ingest.md)."""
