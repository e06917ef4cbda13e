"""The proxy for RocketMQ 5 clients: translates their gRPC calls to requests of the remoting protocol."""
