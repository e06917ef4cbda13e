"""Serves filter servers: stores (9020) and returns (9021) filter programs of consumer groups, and checks whether a
client may make a request (9022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from mq.broker.access.control import AccessDenied, OfLimitedUser
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.state.filter_programs import PutFilter as PutCommand
from mq.broker.state.format_level import LEVEL_OF_FILTERS
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import FrameError
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.requests.filters import FilterVersion, GetFilter, Judged, JudgeRequest, PutFilter


class FilterRequests(Service):
    """Handles the requests of filter servers.

    Args:
        charge: counts the messages and bytes given to a limited user, and returns the seconds until it may be given
            more.
    """

    def __init__(self, context: BrokerContext, *, charge: Callable[[str, int, int], float]) -> None:
        self._charge = charge
        self._metadata = context.metadata
        self._filters = context.metadata.filters
        self._appender = context.appender
        self._access = context.environment.access
        self._read = context.reads.read
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        yield Route(PutFilter, self.handle_put, leader_only=True, repeatable=True)
        yield Route(GetFilter, self.handle_get, leader_only=True)
        yield Route(JudgeRequest, self.handle_judge)

    def counters(self) -> dict[str, int]:
        """Return the number of filter programs, and their bytes."""
        return {"filter_programs": len(self._filters.table), "filter_program_bytes": self._filters.nbytes}

    def handle_put(self, call: Call[PutFilter]) -> bytes | None:
        """Request code 9020: store a group's filter program, unless it is stored already. Raises RequestRefused."""
        ext = call.request.ext
        level = self._metadata.format_level.level
        if level < LEVEL_OF_FILTERS:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the group is at format level {level}, filter programs need {LEVEL_OF_FILTERS}: not all members are "
                "connected and run a release that supports them",
            )
        command = PutCommand(group=ext.consumer_group, topic=ext.topic, program=ext.program, content=call.body)
        body = encode(command)
        if ext.topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic} does not exist")
        there = self._filters.table.get((ext.consumer_group, ext.topic))
        if there is not None and there.name.text == ext.program:
            return call.response()
        self._check_room(command)
        call.drop_body()

        def check() -> None:
            now = self._filters.table.get((ext.consumer_group, ext.topic))
            if now is None or now.name.text != ext.program:
                self._check_room(command)
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"the filter of {ext.consumer_group} was changed at the same time"
                )
            self._log.info(
                "filter_changed", group=ext.consumer_group, topic=ext.topic, program=ext.program, version=now.version
            )

        replicate(self._appender, [body], call, what="a filter program", check=check)
        return None

    def _check_room(self, command: PutCommand) -> None:
        if not self._filters.has_room(command.group, command.topic, command.content):
            limits = self._metadata.limits
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there is no room for the filter of {command.group}: {len(self._filters.table)} programs have "
                f"{self._filters.nbytes} bytes; maximum: {limits.filters_max} with {limits.filter_bytes_max}; "
                "delete consumer groups that are not used",
            )

    def handle_get(self, call: Call[GetFilter]) -> None:
        """Request code 9021: return a filter program. FILTER_DATA_NOT_EXIST: none; FILTER_DATA_NOT_LATEST: another one.

        A request that names no program gets the one that there is.
        """
        ext = call.request.ext

        def respond() -> bytes:
            there = self._filters.table.get((ext.consumer_group, ext.topic))
            if there is None:
                remark = f"the consumer group {ext.consumer_group} has no filter for {ext.topic}"
                return call.response(ResponseCode.FILTER_DATA_NOT_EXIST, remark=remark)
            if ext.program and there.name.text != ext.program:
                remark = f"the filter of {ext.consumer_group} for {ext.topic} is now {there.name.text}"
                return call.response(ResponseCode.FILTER_DATA_NOT_LATEST, remark=remark)
            assert there.version >= 1, f"the filter of {ext.consumer_group} has the version {there.version}"
            return call.response(
                ext=FilterVersion(version=there.version, program=there.name.text).fields(), body=there.content
            )

        when_current(self._read, call, respond)

    def handle_judge(self, call: Call[JudgeRequest]) -> bytes:
        """Request code 9022: check for a filter server if a client may make a request. Raises RequestRefused if not."""
        try:
            requests, size = decode_chunk(call.body)
        except FrameError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the body is not a request: {error}") from error
        if len(requests) != 1 or size != len(call.body):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the body has {len(requests)} requests; allowed: 1")
        if self._access is not None:
            ((request, _, _),) = self._access.authorize(call.request.ext.address, requests, call.body)
            if isinstance(request, AccessDenied):
                raise RequestRefused(ResponseCode.NO_PERMISSION, request.remark)
            if isinstance(request, OfLimitedUser):
                ext = call.request.ext
                if ext.messages < 0 or ext.record_bytes < 0:
                    remark = f"messages is {ext.messages}, recordBytes {ext.record_bytes}; allowed: 0 or more"
                    raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
                seconds = self._charge(request.user, ext.messages, ext.record_bytes)
                assert 0 <= seconds < math.inf, f"{request.user} would wait for {seconds} s"
                return call.response(ext=Judged(is_limited=True, wait_ms=math.ceil(1000 * seconds)).fields())
        return call.response()
