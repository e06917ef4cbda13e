"""Compares raftmq's gRPC proxy with RocketMQ's."""
