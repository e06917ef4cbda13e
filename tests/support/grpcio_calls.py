"""Calls of a gRPC server by grpcio, the client of others: a program of its own, since grpcio starts threads.

    python -m tests.support.grpcio_calls PORT [CERTIFICATE]

Prints what it saw as JSON. CERTIFICATE: PEM file that the server's certificate is verified with; without it no TLS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import grpc

Unary: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"


def seen_by(channel: grpc.Channel) -> dict[str, object]:
    """What a client sees of the methods of `tests.support.grpc_serving`."""
    echo: Unary = channel.unary_unary("/raftmq.Test/Echo")
    both_ways: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/raftmq.Test/Echo")
    large = bytes(3_000_000)
    sizes: Iterable[int] = (0, 1, 70_000, 900_000)
    seen: dict[str, object] = {
        "unary": echo(b"hello").decode(),
        "large": len(echo(large)),
        "compressed": len(echo(large, compression=grpc.Compression.Gzip)),
        "stream": [len(each) for each in both_ways(iter([bytes(size) for size in sizes]))],
        "many": sum(len(each.result()) for each in [echo.future(b"x" * 100) for _ in range(50)]),
    }
    failing = {
        "refused": ("Refuse", b"NOT_FOUND", None),
        "unknown": ("Nothing", b"", None),
        "failed": ("Fail", b"", None),
        "too late": ("Wait", b"", 0.3),
        "too large": ("Echo", bytes(9_000_000), None),
    }
    for name, (method, message, timeout) in failing.items():
        unary: Unary = channel.unary_unary(f"/raftmq.Test/{method}")
        seen[name] = unary.future(message, timeout=timeout).code().name
    return seen


def main() -> None:
    address = f"localhost:{sys.argv[1]}"
    if len(sys.argv) > 2:
        credentials = grpc.ssl_channel_credentials(Path(sys.argv[2]).read_bytes())
        channel = grpc.secure_channel(address, credentials)
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        sys.stdout.write(json.dumps(seen_by(channel)))


if __name__ == "__main__":
    main()
