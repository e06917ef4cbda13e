"""Requests of operators' tools to clean up: 306, 316 and 329."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import ResponseCode
from mq.protocol.operator_requests import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog


class Cleanup(Service):
    """The handlers.

    Args:
        delete_expired: deletes expired log files. Raises OSError.
    """

    def __init__(self, *, delete_expired: Callable[[], None]) -> None:
        self._delete_expired = delete_expired

    def routes(self) -> Iterator[Route]:
        """The requests that this service handles; see `Service`."""
        yield Route(CleanExpiredConsumequeue, self.handle_nothing_to_clean)
        yield Route(CleanUnusedTopic, self.handle_nothing_to_clean)
        yield Route(DeleteExpiredCommitlog, self.handle_delete_expired)

    def handle_nothing_to_clean(self, call: Call[CleanExpiredConsumequeue | CleanUnusedTopic]) -> bytes:
        """Request codes 306 and 316: nothing to do, since deleted queues and expired data are cleaned up within
        seconds.
        """
        return call.response()

    def handle_delete_expired(self, call: Call[DeleteExpiredCommitlog]) -> bytes:
        """Request code 329: delete expired log files now, by the same rules as the timer."""
        try:
            self._delete_expired()
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"files cannot be deleted: {error}") from error
        return call.response()
