"""The limits of a gRPC server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GrpcLimits:
    """The limits for gRPC clients, in bytes, seconds and counts.

    Attributes:
        connections_max: open connections; further ones are closed at once.
        streams_max: calls that are open on one connection; further ones are refused, and clients try them again.
        header_list_bytes_max: metadata of one call, as HTTP/2 counts it: 32 bytes more for each field.
        message_bytes_max: one message of a client, before and after its decompression.
        unfinished_bytes_max: messages of all clients that have not arrived whole; further ones wait.
        unfinished_seconds_max: how long a message may wait for memory, or make no progress.
        stream_window_bytes: the bytes that a client may send on one call before the method has received them.
        connection_window_bytes: the same for all calls of a connection.
        output_bytes_max: answers of one connection that the socket has not taken; methods wait beyond it.
        send_seconds_max: how long a client may read nothing while there are answers for it.
        handshake_seconds_max: from the connection to its first HTTP/2 frame, with HAProxy header and TLS.
        idle_seconds_max: how long a connection may have no call.
        ping_after_seconds: a connection that has been silent for this time is pinged ...
        ping_seconds_max: ... and closed if it is silent for as long again.
        drain_seconds_max: how long calls may continue after the server was told to stop.
        control_frames_burst: frames without any work in them that a connection may send at once ...
        control_frames_per_second: ... and in the long run.
        resets_burst: calls that a connection may cancel at once ...
        resets_per_second: ... and in the long run.
    """

    connections_max: int = 10_000
    streams_max: int = 1_000
    header_list_bytes_max: int = 32 * 1024
    message_bytes_max: int = 8 * 1024 * 1024
    unfinished_bytes_max: int = 256 * 1024 * 1024
    unfinished_seconds_max: float = 30.0
    stream_window_bytes: int = 256 * 1024
    connection_window_bytes: int = 4 * 1024 * 1024
    output_bytes_max: int = 256 * 1024
    send_seconds_max: float = 30.0
    handshake_seconds_max: float = 10.0
    idle_seconds_max: float = 1_800.0
    ping_after_seconds: float = 60.0
    ping_seconds_max: float = 20.0
    drain_seconds_max: float = 20.0
    control_frames_burst: int = 1_000
    control_frames_per_second: float = 100.0
    resets_burst: int = 2_000
    resets_per_second: float = 100.0
