"""Ends connections that were closed before all bytes were sent: the kernel keeps sending these bytes.

After lost packets it does so for many seconds, so that a send of unknown outcome may still be stored long after its
sender has gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.deployments.network import NAME_SERVERS

_STATES = {"04": "fin-wait-1", "0B": "closing", "09": "last-ack"}
"""States in /proc/net/tcp in which this side has closed, and the other has not acknowledged everything."""
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.2


def still_sending(table: str, ports: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yield the local address and port of each closed connection that still has bytes to send to one of ``ports``.

    ``table`` is the content of /proc/net/tcp, which has addresses as hexadecimal numbers, in the machine's byte order.
    """
    numbers = frozenset(ports)
    for line in table.splitlines()[1:]:
        _, local, remote, state, queues, *_ = line.split()
        if state in _STATES and int(queues.partition(":")[0], 16) and int(remote.rpartition(":")[2], 16) in numbers:
            address, _, port = local.partition(":")
            yield ".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)


async def end_closed_senders(cluster: Cluster) -> int:
    """End closed connections that still have bytes to send to brokers. Returns the number that remains.

    They are ended by `ss -K` (iproute2), if the kernel can; otherwise this waits for them, up to `WAIT_SECONDS_MAX`.
    """
    network = cluster.network
    ports = {network.clients_reach(node)[1] for node in cluster.nodes}
    ports |= {address[1] for node in cluster.nodes for address in (network.listens(node), network.replicates(node))}
    # A broker's own network, if it has one: it forwards requests to the leader.
    places = ["self", *(str(cluster.pid(name)) for name in (*cluster.nodes, *NAME_SERVERS) if cluster.is_running(name))]
    count = 0
    with trio.move_on_after(WAIT_SECONDS_MAX):
        while True:
            count = 0
            for place in places:
                senders = sorted(still_sending(_table(place), ports))
                count += len(senders)
                await _end_senders(place, senders)
            if not count:
                break
            await trio.sleep(POLL_SECONDS)
    return count


def _table(process: str) -> str:
    try:
        return Path(f"/proc/{process}/net/tcp").read_text()
    except OSError:
        return ""  # the process has just ended


async def _end_senders(process: str, senders: Iterable[tuple[str, int]]) -> None:
    if shutil.which("ss") is None:
        return
    inside = [] if process == "self" else ["nsenter", f"--net=/proc/{process}/ns/net"]
    for address, port in senders:
        command = [*inside, "ss", "-K", "-tn", "state", "all", "src", f"{address}:{port}"]
        await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
