"""A message broker that speaks the RocketMQ protocol on top of a replicated log."""
