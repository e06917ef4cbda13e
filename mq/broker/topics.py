"""Topic administration: UPDATE_AND_CREATE_TOPIC (request code 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq.broker.appender import Appender
from mq.broker.commands import CommandRefused, PutTopic, TopicConfig, encode_command
from mq.broker.connection import ClientConnection, Handler
from mq.broker.metadata import Metadata
from mq.broker.refusal import RequestRefused
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import UpdateAndCreateTopic, encode_response
from mq.protocol.names import NameRefused, check_topic, is_system_topic

QUEUES_MAX = 1024


class Topics:
    """The handlers that change topics."""

    def __init__(self, *, metadata: Metadata, appender: Appender, wall_clock_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._appender = appender
        self._wall_clock_ms = wall_clock_ms

    def leader_handlers(self) -> dict[type[Any], Handler]:
        """What only the leader serves."""
        return {UpdateAndCreateTopic: self.handle_put}

    def handle_put(
        self,
        connection: ClientConnection,
        request: UpdateAndCreateTopic,
        body: bytes,
        serialization: int,
    ) -> None:
        """Create a topic or change its queues; answered when it is replicated."""
        ext = request.ext
        try:
            check_topic(ext.topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if is_system_topic(ext.topic) or ext.topic in self._metadata.system_topics:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the topic {ext.topic} is conflict with system reserved words"
            )
        for name, count in (("readQueueNums", ext.read_queue_nums), ("writeQueueNums", ext.write_queue_nums)):
            if not 1 <= count <= QUEUES_MAX:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER, f"{name} is {count}, allowed are 1 to {QUEUES_MAX}"
                )
        if not self._metadata.has_room_for_topic(ext.topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there are {len(self._metadata.topics)} topics already")
        if not 0 <= ext.perm <= 7:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"perm is {ext.perm}, allowed are 0 to 7")
        config = TopicConfig(
            name=ext.topic,
            read_queues=ext.read_queue_nums,
            write_queues=ext.write_queue_nums,
            perm=ext.perm,
            sys_flag=ext.topic_sys_flag or 0,
            order=ext.order,
        )

        try:
            command = encode_command(PutTopic(config=config, timestamp_ms=self._wall_clock_ms()))
        except CommandRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error

        def committed(known: bool) -> None:
            if known:
                connection.send(encode_response(request.opaque, ResponseCode.SUCCESS, serialization=serialization))
            else:
                connection.close("leadership was lost while a topic was being stored")

        self._appender.add_command(command, committed)
