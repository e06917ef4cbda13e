"""The gRPC proxy beside that of RocketMQ."""
