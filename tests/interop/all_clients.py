"""All clients under test."""

from __future__ import annotations

from tests.interop.clients import RAFTMQ, ROCKETMQ, Client, GoClient, JavaClient, NodeClient, RustClient
from tests.interop.grpc_clients import GrpcGoClient, GrpcJavaClient, GrpcNodeClient, GrpcRustClient, PythonClient

_SINCE_5 = "this client supports it since 5.0"
_JAVA4_SKIPS = dict.fromkeys(("timers", "timers-killed", "recall", "pop", "pop-killed", "users"), _SINCE_5)

CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        JavaClient("java4", _JAVA4_SKIPS),
        JavaClient("java5"),
        GoClient(),
        NodeClient(),
        RustClient(),
        PythonClient("python-raftmq", RAFTMQ, proxy=RAFTMQ),
        GrpcJavaClient(),
        GrpcGoClient(),
        GrpcNodeClient(),
        GrpcRustClient(),
        PythonClient("python", RAFTMQ),
        PythonClient("python-rocketmq", ROCKETMQ),
    )
}
"""By name, in the order of the report."""
