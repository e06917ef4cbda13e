"""raftmq as the broker of Celery, or of anything else on kombu: `import raftmq.celery` makes its URLs known.

import raftmq.celery
from celery import Celery

app = Celery("shop", broker="raftmq://127.0.0.1:9876")

`celery beat --scheduler raftmq.celery:ScheduleScheduler` lets the brokers send `beat_schedule`.
"""

from typing import TYPE_CHECKING

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise ImportError("raftmq.celery needs kombu: pip install 'raftmq[celery]'") from error

from mq.celery.transport import TLSTransport, Transport

if TYPE_CHECKING:
    from mq.celery.beat import ScheduleScheduler

__all__ = ["ScheduleScheduler", "TLSTransport", "Transport"]

TRANSPORT_ALIASES["raftmq"] = "raftmq.celery:Transport"
TRANSPORT_ALIASES["raftmqs"] = "raftmq.celery:TLSTransport"


def __getattr__(name: str) -> object:
    """Import the scheduler when it is used: it needs Celery, which other users of kombu do not have."""
    if name != "ScheduleScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from mq.celery.beat import ScheduleScheduler
    except ModuleNotFoundError as error:
        raise ImportError("ScheduleScheduler needs Celery: pip install celery") from error
    return ScheduleScheduler
