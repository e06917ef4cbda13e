"""A network switch in a process: it joins a virtual card (TAP) of each namespace by links of any quality.

Kernels without netem cannot delay or reorder packets; this can, on any Linux with TUN. Run as ``python -m
jepsen.deployments.switch SEED NAMESPACE...`` by root: it creates a card ``eth0`` in each namespace and an
`OUTSIDE_CARD` in its own, and prints "ready". Then each line of its input is a JSON list of [from, to, shape], which
replaces all shapes; the answer to each is a JSON object with the counts of the previous shapes. Port numbers are the
positions of the namespaces, and -1 for the card outside. It ends with its input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import selectors
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec

from jepsen.deployments.packets import OUTSIDE_CARD, OUTSIDE_PORT, PacketPath, Shape

FRAME_BYTES_MAX = 65_536

_TUNSETIFF, _TAP_WITHOUT_HEADER, _NEW_NETWORK = 0x400454CA, 0x1002, 0x40000000
_ORDERS = msgspec.json.Decoder(list[tuple[int, int, Shape]])


class _Switch:
    def __init__(self, ports: dict[int, int], rng: Random) -> None:
        self._ports = ports
        self._rng = rng
        self._links: dict[tuple[int, int], PacketPath] = {}
        self._port_of: dict[bytes, int] = {}
        self._frames: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()

    def shape(self, orders: list[tuple[int, int, Shape]]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for link in self._links.values():
            counts += link.counts
        self._links = {(source, target): PacketPath(shape) for source, target, shape in orders}
        return counts

    def forward(self, source: int, frame: bytes, now: float) -> None:
        self._port_of[frame[6:12]] = source
        port = self._port_of.get(frame[:6])
        for target in self._ports if port is None else (port,):
            if target == source:
                continue
            link = self._links.get((source, target))
            if link is None:
                self._deliver(target, frame)
                continue
            for at in link.due(now, len(frame), self._rng):
                heapq.heappush(self._frames, (at, next(self._order), target, frame))

    def deliver_due(self, now: float) -> float | None:
        """Deliver due packets; returns the seconds until the next one, None if nothing waits."""
        while self._frames and self._frames[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._frames)
            self._deliver(target, frame)
        return self._frames[0][0] - now if self._frames else None

    def _deliver(self, target: int, frame: bytes) -> None:
        try:
            os.write(self._ports[target], frame)
        except (BlockingIOError, OSError):
            pass  # its card is down or full: networks lose packets


def _open_card(name: str) -> int:
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(card, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return card


def _open_ports(namespaces: Sequence[str]) -> dict[int, int]:
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path, "rb") as namespace:
            if libc.setns(namespace.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {path}")

    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    ports = {}
    for number, namespace in enumerate(namespaces):
        enter(f"/run/netns/{namespace}")
        ports[number] = _open_card("eth0")
    if libc.setns(home, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "cannot return to the own network namespace")
    ports[OUTSIDE_PORT] = _open_card(OUTSIDE_CARD)
    return ports


def _now() -> float:
    return time.monotonic_ns() / 1e9


def _write_line(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def main(seed: str, namespaces: Sequence[str]) -> None:
    """Forward packets until the input ends. Raises OSError."""
    ports = _open_ports(namespaces)
    switch = _Switch(ports, Random(seed))
    with selectors.DefaultSelector() as selector:
        for number, card in ports.items():
            selector.register(card, selectors.EVENT_READ, number)
        selector.register(0, selectors.EVENT_READ, None)
        _write_line("ready")
        rest = b""
        while True:
            wait = switch.deliver_due(_now())
            for key, _ in selector.select(wait):
                if key.data is not None:
                    _read_card(switch, key.data, key.fd)
                    continue
                data = os.read(0, 65_536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    _write_line(msgspec.json.encode(switch.shape(_ORDERS.decode(line))).decode())


def _read_card(switch: _Switch, number: int, card: int) -> None:
    for _ in range(64):  # then the others get their turn
        try:
            frame = os.read(card, FRAME_BYTES_MAX)
        except OSError:
            return  # nothing more, or its card is down
        switch.forward(number, frame, _now())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
