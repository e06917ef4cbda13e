"""The protocols of the load generator: they build requests before the start, and match responses to them."""
