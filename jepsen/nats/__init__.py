"""The same checks on a system that is not ours: three nats-servers, which lose power."""
