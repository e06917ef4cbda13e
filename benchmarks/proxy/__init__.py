"""The gRPC proxy beside RocketMQ's."""
