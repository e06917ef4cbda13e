"""Records the outcomes that responses to raw requests report in the history."""

from __future__ import annotations

from checkers.recording import Worker
from jepsen.stored_records import values_in
from jepsen.workloads.workload import Workload
from mq.client.send_outcome import judge_send
from mq.protocol.codes import ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.message_ids import parse_offset_message_id

_NOTHING = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})


def record_sent(
    workload: Workload, worker: Worker, response: Response, value: str, asked_queue: str, node: str
) -> None:
    """Record the end of a `send` of one message to ``asked_queue``."""
    record_batch_sent(workload, [worker], response, [value], asked_queue, node)


def record_batch_sent(
    workload: Workload, workers: list[Worker], response: Response, values: list[str], asked_queue: str, node: str
) -> None:
    """Record the ends of the `send` operations of one batch. Each has its own worker."""
    if response.code == ResponseCode.SUCCESS:
        first = int(response.ext["queueOffset"])
        queue = f"{workload.topic}/{response.ext['queueId']}"
        ids = response.ext["msgId"].split(",")
        assert len(ids) == len(values), f"{len(ids)} ids for a batch of {len(values)}: {response}"
        for number, (worker, value, place) in enumerate(zip(workers, values, ids, strict=True)):
            position = parse_offset_message_id(place).physical_offset
            worker.ok("send", k=queue, v=value, o=first + number, n=node, pos=position)
            workload.acknowledge(queue, first + number, value)
        return
    for worker, value in zip(workers, values, strict=True):
        record_refused(worker, "send", response, value, k=asked_queue, n=node)


def record_refused(worker: Worker, name: str, response: Response, value: str, **fields: str) -> None:
    """Record the end of an operation that stores ``value`` and got an error as response."""
    reason = f"code {response.code}: {response.remark}"
    if judge_send(response.code, response.remark).stored == "no":
        worker.fail(name, reason, v=value, **fields)
    else:
        worker.info(name, reason, v=value, **fields)


def record_pulled(worker: Worker, response: Response, body: bytes, queue: str, node: str, offset: int) -> None:
    """Record the end of a `read` that began at ``offset``."""
    if response.code == ResponseCode.SUCCESS:
        worker.ok("read", k=queue, n=node, v=values_in(body))
    elif response.code == ResponseCode.PULL_OFFSET_MOVED and int(response.ext["nextBeginOffset"]) < offset:
        worker.ok("read", k=queue, n=node, v=[], err=f"moved back to {response.ext['nextBeginOffset']}")
    elif response.code in _NOTHING:
        worker.ok("read", k=queue, n=node, v=[])
    else:
        worker.fail("read", f"code {response.code}: {response.remark}", k=queue, n=node)


def record_end(worker: Worker, response: Response, queue: str, node: str) -> None:
    """Record the end of an operation `end`, which queries the end of a queue."""
    if response.code == ResponseCode.SUCCESS:
        worker.ok("end", k=queue, n=node, o=int(response.ext["offset"]))
    else:
        worker.fail("end", f"code {response.code}: {response.remark}", k=queue, n=node)
