"""raftmq as the broker of Celery, or of anything else on kombu: `import raftmq.celery` makes its URLs known.

import raftmq.celery
from celery import Celery

app = Celery("shop", broker="raftmq://127.0.0.1:9876")
"""

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise ImportError("raftmq.celery needs kombu: pip install 'raftmq[celery]'") from error

from mq.celery.transport import TLSTransport, Transport

__all__ = ["TLSTransport", "Transport"]

TRANSPORT_ALIASES["raftmq"] = "raftmq.celery:Transport"
TRANSPORT_ALIASES["raftmqs"] = "raftmq.celery:TLSTransport"
