"""Encodes and decodes the RocketMQ remoting protocol: frames, headers, message records, bodies. Pure functions.

Nothing here does I/O, reads a clock or imports another part of the project. All integers on the wire are big-endian.

What lies directly in here, and `messages.compression`, needs only the standard library: executors of Spark import them,
and have none of our dependencies.

Each package imports only those below it:

- `incoming`: bytes from a connection to typed requests and responses
- `access`: signatures, and what belongs to a signed request
- `requests`: a module for each family of requests, with a table of their codes
- `messages`: records, batches, and what properties mean
- `wire`: how headers and bodies are encoded, whatever the request
"""
