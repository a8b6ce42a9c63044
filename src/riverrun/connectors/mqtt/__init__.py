"""MQTT: messages of devices become records of a topic, and are acknowledged when Kafka has them."""
