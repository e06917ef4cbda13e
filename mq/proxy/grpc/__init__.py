"""A gRPC server on trio and h2, for any service. Methods receive and send messages as bytes."""

from mq.proxy.grpc.call import Call
from mq.proxy.grpc.certificate import OwnCertificate, SelfSigned, TlsContext
from mq.proxy.grpc.counters import GrpcCounters
from mq.proxy.grpc.health import health_methods
from mq.proxy.grpc.limits import GrpcLimits
from mq.proxy.grpc.served_connection import Method
from mq.proxy.grpc.server import serve_grpc
from mq.proxy.grpc.status import BrokenCall, CallRefused, Status

__all__ = [
    "BrokenCall",
    "Call",
    "CallRefused",
    "GrpcCounters",
    "GrpcLimits",
    "Method",
    "OwnCertificate",
    "SelfSigned",
    "Status",
    "TlsContext",
    "health_methods",
    "serve_grpc",
]
