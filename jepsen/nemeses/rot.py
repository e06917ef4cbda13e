"""Corrupts old data on the disks of running brokers."""

from __future__ import annotations

import trio

from jepsen.damage.log_damage import closed_files, flip_property
from jepsen.nemeses.disks import REPAIR_SECONDS_MAX, wait_for_closed_files, wait_repaired
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep
from jepsen.wire import ask_once, pull_fields
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import RecordError, StoredMessage, decode_records


def serves(message: StoredMessage, body: bytes) -> bool:
    """Whether the body of a pull's response is exactly this message, with its own body and properties."""
    try:
        records = decode_records(body)
    except RecordError:
        return False
    return [(each.body, each.properties) for each in records] == [(message.body, message.properties)]


async def rot(injection: Injection, step: FaultStep, leader: str) -> None:
    """Change a property of an old message on the disk of a running broker, and pull the message from it.

    The broker is restarted before, since it trusts the page cache for its own writes. It must not serve the damaged
    bytes, and must get the right ones from its peers.
    """
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    commitlog = cluster.data_dir(node) / "commitlog"
    await wait_for_closed_files(cluster, (node,))
    old = closed_files(commitlog)
    number = injection.begin(step, (node,))
    await cluster.stop(node)
    await cluster.start(node)
    await cluster.wait_caught_up(node, REPAIR_SECONDS_MAX)
    if (file_and_message := flip_property(injection.rng, old)) is not None:
        file, message = file_and_message
        if file.is_changed:
            where = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
            injection.confirm(number, f"a bit of a property of {where} differs in {file.path.name}")
        fields = pull_fields(message.topic, message.queue_id, message.queue_offset, count_max=1)
        response = await ask_once(cluster.network.clients_reach(node), RequestCode.PULL_MESSAGE, fields)
        if response is not None and response[0].code == ResponseCode.SUCCESS and not serves(message, response[1]):
            injection.record_bug(node, f"handed out {message.topic}/{message.queue_id}@{message.queue_offset} damaged")
        await wait_repaired(injection, node, [file])
    await trio.sleep(step.seconds)
    injection.end(number)
