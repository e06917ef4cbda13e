"""The trio shell of a name server: listens, cuts frames, lets `Handlers` answer them, watches the time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import structlog
import trio

from mq.namesrv.handlers import Handlers
from mq.namesrv.kv_config import KvConfig
from mq.namesrv.kv_file import KvFile
from mq.namesrv.route_table import RouteTable, TableLimits
from mq.namesrv.running_config import RunningConfig
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.errors import FrameError
from mq.protocol.frames import split_frames

RECEIVE_BYTES = 64 * 1024
REPLY_BYTES = 1024 * 1024

Log = structlog.stdlib.BoundLogger


async def serve(
    settings: NamesrvSettings, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a name server until cancelled. ``task_status`` is told the address it listens on.

    Raises:
        OSError: it cannot listen there, or the key-value configuration cannot be read.
        KvFileDamaged: nor can it when it is read.
    """
    log: Log = structlog.get_logger("namesrv")
    table = RouteTable(
        expiry_seconds=settings.broker_expiry_seconds,
        limits=TableLimits(
            broker_groups_max=settings.broker_groups_max,
            topics_max=settings.topics_max,
        ),
    )
    kv = KvConfig(entries_max=settings.kv_entries_max, bytes_max=settings.kv_bytes_max)
    kv_file = KvFile(kv, settings.data_dir)
    if (fault := kv_file.load()) is not None:
        log.error("kv_config_from_backup", error=fault)
    handlers = Handlers(table, kv, RunningConfig(settings), clock=trio.current_time, log=log)
    server = _Server(settings, handlers, kv, kv_file, log)
    listeners = await trio.open_tcp_listeners(settings.listen_port, host=settings.listen_host)
    host, port = listeners[0].socket.getsockname()[:2]
    log.info("listening", host=host, port=port)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expire_forever, handlers, settings.scan_seconds)
            await nursery.start(partial(trio.serve_listeners, server.serve_connection, listeners))
            task_status.started((host, port))
    finally:
        log.info("stopped", host=host, port=port)


async def _expire_forever(handlers: Handlers, scan_seconds: float) -> None:
    while True:
        await trio.sleep(scan_seconds)
        handlers.expire()


class _Server:
    def __init__(self, settings: NamesrvSettings, handlers: Handlers, kv: KvConfig, kv_file: KvFile, log: Log) -> None:
        self._settings = settings
        self._handlers = handlers
        self._kv = kv
        self._kv_file = kv_file
        self._log = log
        self._numbers = itertools.count(1)
        self._connections = 0

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends. Whatever happens on it ends this connection only."""
        try:
            address, port = stream.socket.getpeername()[:2]
        except OSError:
            await trio.aclose_forcefully(stream)  # gone before we could look
            return
        # The number tells a connection from an earlier one of the same peer and port.
        connection = f"{address}:{port}#{next(self._numbers)}"
        if self._connections >= self._settings.connections_max:
            self._log.warning("connection_refused", peer=connection, connections=self._connections)
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            await self._serve(stream, connection)
        except FrameError as error:
            self._log.warning("bad_frame", peer=connection, error=error.reason)
        except trio.BrokenResourceError as error:
            self._log.debug("connection_broken", peer=connection, error=str(error))
        except OSError as error:
            # What was changed may be gone after a restart, so nobody is told that it is stored.
            self._log.error("kv_config_not_saved", peer=connection, error=str(error))
        except Exception:
            # Nothing a peer sends may end the process, not even by a fault of ours.
            self._log.exception("connection_failed", peer=connection)
        finally:
            self._connections -= 1
            self._handlers.connection_closed(connection)
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream, connection: str) -> None:
        settings = self._settings
        received = bytearray()
        deadline = trio.current_time() + settings.first_frame_seconds_max
        while True:
            with trio.move_on_at(deadline) as waiting:
                chunk = await stream.receive_some(RECEIVE_BYTES)
            if waiting.cancelled_caught:
                self._log.info("connection_silent", peer=connection, unfinished_bytes=len(received))
                return
            if not chunk:
                return
            received += chunk
            # A large request comes in many chunks; it is copied out once, when it is complete.
            if not _may_be_complete(received, settings.frame_bytes_max):
                continue
            frames, consumed = split_frames(memoryview(bytes(received)), frame_bytes_max=settings.frame_bytes_max)
            del received[:consumed]
            kv_version = self._kv.version
            for replies in self._replies(frames, connection):
                if self._kv.version != kv_version:
                    await self._kv_file.save()
                with trio.move_on_after(settings.send_seconds_max) as sending:
                    await stream.send_all(replies)
                if sending.cancelled_caught:
                    self._log.warning("peer_does_not_read", peer=connection, reply_bytes=len(replies))
                    return
            # Only a complete request moves the deadline: nobody holds a connection with a byte now and then.
            deadline = trio.current_time() + settings.idle_seconds_max

    def _replies(self, frames: list[tuple[int, memoryview, memoryview]], connection: str) -> Iterator[bytes]:
        """The replies to all frames of a chunk in one piece, or in several if they are large."""
        replies = bytearray()
        for serialization, header, body in frames:
            replies += self._handlers.handle(serialization, header, body, connection)
            if len(replies) >= REPLY_BYTES:
                yield bytes(replies)
                replies.clear()
        if replies:
            yield bytes(replies)


def _may_be_complete(received: bytearray, frame_bytes_max: int) -> bool:
    if len(received) < 4:
        return False
    # Finds fault with the lengths now, not when the rest has come.
    split_frames(memoryview(bytes(received[:8])), frame_bytes_max=frame_bytes_max)
    return len(received) >= 4 + int.from_bytes(received[:4], "big")
