"""A WSGI application with a producer, for servers that fork: `tests/process/test_forking_servers.py`.

`OPENED_BY` says what opens the producer: the import of this module, a hook of uWSGI in each process, or the first
request of a process. A request also opens it in a process that was forked after it had been opened.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from raftmq import AlreadyOpen, ClientClosed, ClientForked, Message
from raftmq.sync import SyncProducer

TOPIC = "web-orders"
producer = SyncProducer(os.environ["NAMESRV"], group="web")
if os.environ["OPENED_BY"] == "import":
    producer.open()
    producer.send(Message(TOPIC, b"imported"))
elif os.environ["OPENED_BY"] == "uwsgidecorators":
    import uwsgidecorators  # type: ignore[import-untyped]

    @uwsgidecorators.postfork
    def open_in_worker() -> None:
        producer.open()


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    message = Message(TOPIC, environ["PATH_INFO"].encode())
    why = ""
    try:
        producer.send(message)
    except (ClientForked, ClientClosed) as error:
        why = type(error).__name__
        with contextlib.suppress(AlreadyOpen):  # another thread of this process was faster
            producer.open()
        producer.send(message)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), "opened": why}).encode()]
