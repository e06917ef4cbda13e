"""Deletes expired log files, on a timer and on request (codes 306, 316 and 329)."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.base.periodic_task import Periodic
from mq.broker.base.retention import Retention
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.broker import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog


class Cleanup(Service):
    """Deletes expired log files, on a timer and on request.

    Args:
        retention: deletes the files.
    """

    def __init__(self, context: BrokerContext, *, retention: Retention) -> None:
        self._period_seconds = context.settings.retention_check_seconds
        self._retention = retention
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        yield Route(CleanExpiredConsumequeue, self.handle_nothing_to_clean)
        yield Route(CleanUnusedTopic, self.handle_nothing_to_clean)
        yield Route(DeleteExpiredCommitlog, self.handle_delete_expired)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._period_seconds, self.run)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings for the next deletions."""
        self._retention.settings_changed(settings)

    def run(self) -> None:
        """Delete the log files that may be deleted now."""
        try:
            self._retention.run()
        except OSError as error:
            self._log.error("retention_failed", error=str(error))  # files stay longer than they should

    def handle_nothing_to_clean(self, call: Call[CleanExpiredConsumequeue | CleanUnusedTopic]) -> bytes:
        """Request codes 306 and 316: do nothing, since deleted and expired data is cleaned up within seconds."""
        return call.response()

    def handle_delete_expired(self, call: Call[DeleteExpiredCommitlog]) -> bytes:
        """Request code 329: delete expired log files now, by the same rules as the timer."""
        try:
            self._retention.run()
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"files cannot be deleted: {error}") from error
        return call.response()
