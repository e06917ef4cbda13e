"""Translates between the gRPC protocol and requests to brokers. Pure: no I/O, no clock, no await."""
