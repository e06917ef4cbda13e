"""The messages of the gRPC protocol, compiled by `make proto`."""
