"""The simulated machine of a kit's brokers: without threads, syncs and ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from mq.testing.clock import KitClock
from mq.testing.network import Address, Network
from raftlog import Machine, Reactor, RealDisk
from raftlog.net.machine import Attempt, Listening, OnSocket
from raftlog.net.reactor import Mailbox
from raftlog.segment.disk import Buffer, Disk
from raftlog.segment.writer import InlineWriter, LogWriter, OnFailure

T = TypeVar("T")

_DISK_BYTES = 1 << 40


class KitDisk(RealDisk):
    """Writes files without syncing them: they need not survive the test."""

    def write_synced(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def allocate(self, fd: int, length: int) -> None:
        if length > self.size(fd):
            self.truncate(fd, length)

    def usage(self, path: str) -> tuple[int, int]:
        return _DISK_BYTES, _DISK_BYTES


class KitReactor(Reactor):
    """A reactor that never waits. Its turns do not depend on the speed of this machine."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0, cpu_clock=lambda: 0.0)

    async def run(self) -> None:
        with self.giving_way():
            await super().run()


class KitMachine(Machine):
    """The machine of one server, which has a name in the network."""

    owns_process = False
    has_threads = False

    def __init__(self, name: str, network: Network, clock: KitClock) -> None:
        self._name = name
        self._network = network
        self._clock = clock

    def open_disk(self) -> Disk:
        return KitDisk()

    def open_reactor(self) -> Reactor:
        return KitReactor()

    def open_writer(
        self, done_fd: int, on_failed: OnFailure, observe: Callable[[float], None], sync_bytes_max: int
    ) -> LogWriter:
        return InlineWriter(lambda ticket: os.eventfd_write(done_fd, 1), on_failed)

    async def in_thread(self, job: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return job()

    async def in_thread_together(self, job: Callable[[], T]) -> T:
        return await self.in_thread(job)

    def check_free(self, address: Address) -> None:
        pass

    def listen(self, reactor: Reactor, address: Address, on_accept: OnSocket) -> Listening:
        return _ReactorListener(self._network, self._name, reactor, address, on_accept)

    def dial(
        self, reactor: Reactor, address: Address, on_connected: OnSocket, on_failed: Callable[[str], None]
    ) -> Attempt:
        return _ReactorAttempt(self._network, self._name, reactor, address, on_connected, on_failed)

    async def connect(self, address: Address) -> socket.socket:
        await trio.lowlevel.checkpoint()
        return self._network.connect_server(self._name, address)

    async def open_stream(self, address: Address) -> trio.SocketStream:
        return trio.SocketStream(trio.socket.from_stdlib_socket(await self.connect(address)))

    def ageing_clock(self) -> float:
        return self._clock.seconds()

    @property
    def thread_clock(self) -> Callable[[], float]:
        return lambda: 0.0

    @property
    def boot_time(self) -> Callable[[], float]:
        return self._clock.seconds

    def wall_clock_ms(self) -> int:
        return self._clock.wall_ms()


class _ReactorListener:
    """A `raftlog.Listener` for connections within the kit."""

    def __init__(self, network: Network, name: str, reactor: Reactor, address: Address, on_accept: OnSocket) -> None:
        self.port = address[1]
        self.closed = False
        self._network = network
        self._mailbox = Mailbox(reactor, self._deliver)
        self._on_accept = on_accept
        network.listen(name, self.port, self._mailbox.put)

    def close(self) -> None:
        self.closed = True
        self._network.stop_listening(self.port)
        self._mailbox.close()

    def _deliver(self, sock: object) -> None:
        assert isinstance(sock, socket.socket)
        sock.setblocking(False)
        self._on_accept(sock)


class _ReactorAttempt:
    """A `raftlog.Dialing` for connections within the kit. It ends in the next turn."""

    def __init__(
        self,
        network: Network,
        name: str,
        reactor: Reactor,
        address: Address,
        on_connected: OnSocket,
        on_failed: Callable[[str], None],
    ) -> None:
        self._mailbox: Mailbox | None = Mailbox(reactor, lambda _: self._end())
        self._on_connected, self._on_failed = on_connected, on_failed
        self._socket: socket.socket | None = None
        self._failure = ""
        try:
            self._socket = network.connect_server(name, address)
            self._socket.setblocking(False)
        except OSError as error:
            self._failure = error.strerror or str(error)
        self._mailbox.put(None)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._close_mailbox()

    def _close_mailbox(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()

    def _end(self) -> None:
        self._close_mailbox()
        sock, self._socket = self._socket, None
        if sock is not None:
            self._on_connected(sock)
        else:
            self._on_failed(self._failure)
