"""The proxy of RocketMQ 5's clients: speaks gRPC to them, and to brokers the protocol that those speak."""
