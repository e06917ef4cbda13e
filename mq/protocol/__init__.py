"""The RocketMQ remoting protocol as pure functions and values: frames, headers, message records, bodies.

Nothing here does I/O, reads a clock or imports another part of the project. All integers on the wire are big-endian.
"""
