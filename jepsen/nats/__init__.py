"""The same checks on another system: three nats-servers that lose power."""
