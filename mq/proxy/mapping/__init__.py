"""Pure translation between the gRPC protocol and requests to brokers. No I/O, no clock, no await."""
