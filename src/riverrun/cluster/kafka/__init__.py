"""The Kafka that riverrun runs: plan, storage, nodes."""
