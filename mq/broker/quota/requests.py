"""Sets and lists the quotas of users, and lists who is throttled: request codes 9024 and 9025."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, check_level, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.quota.gate import QuotaGate
from mq.broker.state.format_level import LEVEL_OF_QUOTAS
from mq.broker.state.user_quotas import USER_QUOTAS_MAX
from mq.broker.state.user_quotas import PutUserQuota as PutUserQuotaCommand
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.quota_attributes import NO_QUOTA
from mq.protocol.requests.quotas import ListQuotas, NamedQuota, PutUserQuota, QuotaList, Throttled, UserQuota


class QuotaRequests(Service):
    """Sets and lists the quotas of users, and lists the users that are throttled."""

    def __init__(self, context: BrokerContext, *, gate: QuotaGate) -> None:
        self._gate = gate
        self._quotas = context.metadata.user_quotas
        self._level = context.metadata.format_level
        self._appender = context.appender
        self._buckets = context.quotas
        self._access = context.environment.access
        self._clock = context.clock

    def routes(self) -> Iterator[Route]:
        yield Route(PutUserQuota, self.handle_put, leader_only=True)
        yield Route(ListQuotas, self.handle_list)

    def handle_put(self, call: Call[PutUserQuota]) -> None:
        """Request code 9024: set the quota of a user. Answers when it is replicated. Raises RequestRefused."""
        name, quota = call.request.ext.name, decode_body(UserQuota.decode, call.body).quota
        if self._access is None:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "this broker does not authenticate clients (see acl_file), so it knows no users: give quotas to topics",
            )
        check_level(self._level.level, LEVEL_OF_QUOTAS, "quotas need")
        command = encode(PutUserQuotaCommand(name=name, quota=quota))

        def check() -> None:
            if quota != NO_QUOTA and not self._quotas.has_room(name):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"{USER_QUOTAS_MAX} users have a quota already; no more are allowed"
                )

        check()
        replicate(self._appender, [command], call, what="a quota", check=check)

    def handle_list(self, call: Call[ListQuotas]) -> bytes:
        """Request code 9025: return the quotas, and the users that this replica throttles; replicas differ in these."""
        now = self._clock()
        users = [
            NamedQuota(user=name, quota=quota, connections=self._gate.connections_of(name))
            for name, quota in sorted(self._quotas.table.items())
        ]
        subjects = [
            Throttled(
                kind=who.kind,
                name=who.name,
                direction=who.direction,
                delayed=how.delayed_count,
                refused=how.refused_count,
                seconds_ago=round(now - how.at, 1),
            )
            for who, how in self._buckets.recent(now)
        ]
        return call.response(body=QuotaList(users=users, throttled=subjects).encode())
