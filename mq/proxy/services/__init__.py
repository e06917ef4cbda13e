"""The methods of the gRPC service; each is a coroutine function that serves one call."""
