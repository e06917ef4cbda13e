"""Forwards TCP connections through this process, and blocks them in either direction."""

from __future__ import annotations

from functools import partial

import trio

from mq.local_cluster import HOST

PIECE_BYTES = 65536


class LoopbackProxy:
    """A proxy that listens on ``port`` and connects to ``target``, both on the loopback address.

    Attributes:
        wait_count: pieces that waited since this was last set to 0.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.wait_count = 0
        self._open = {True: trio.Event(), False: trio.Event()}
        for event in self._open.values():
            event.set()

    def hold(self, *, forth: bool, back: bool) -> None:
        """Block data to the target (``forth``), or back to the caller (``back``), and let other data pass."""
        for way, is_held in ((True, forth), (False, back)):
            if is_held and self._open[way].is_set():
                self._open[way] = trio.Event()
            elif not is_held:
                self._open[way].set()

    async def pass_gate(self, *, forth: bool) -> None:
        """Wait until data may pass in this direction."""
        if not self._open[forth].is_set():
            self.wait_count += 1
        while not self._open[forth].is_set():
            await self._open[forth].wait()


async def serve(link: LoopbackProxy, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Forward connections until cancelled. Raises OSError if the proxy's port is not available."""
    listeners = await trio.open_tcp_listeners(link.port, host=HOST)
    task_status.started()
    await trio.serve_listeners(partial(_pass_on, link), listeners)


async def _pass_on(link: LoopbackProxy, caller: trio.SocketStream) -> None:
    """Forward one connection, until either side ends it: then both ends are closed at once, as when its process
    dies.
    """
    async with caller:
        await link.pass_gate(forth=True)
        try:
            target = await trio.open_tcp_stream(HOST, link.target)
        except OSError:
            return
        async with target, trio.open_nursery() as nursery:

            async def copy(source: trio.SocketStream, sink: trio.SocketStream, forth: bool) -> None:
                try:
                    while piece := await source.receive_some(PIECE_BYTES):
                        await link.pass_gate(forth=forth)
                        await sink.send_all(piece)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(copy, caller, target, True)
            nursery.start_soon(copy, target, caller, False)
