"""Creates, changes and deletes topics: request codes 17, 18 (several at once) and 215."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mq.broker.admin.attributes import attribute_changes, merge_attributes, sets
from mq.broker.admin.creations import Creations
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, check_level, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import (
    DELETER_LENGTH_MAX,
    DeleteTopic,
    ForgetTopic,
    PutTopic,
    TopicConfig,
    encode_command,
)
from mq.broker.state.format_level import (
    LEVEL_OF_COMPACTION,
    LEVEL_OF_CONTINUED_OFFSETS,
    LEVEL_OF_DELETED_TOPICS,
    LEVEL_OF_LITE_TOPICS,
    LEVEL_OF_QUOTAS,
    LEVEL_OF_TOPIC_RETENTION,
)
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE, PRIORITY, TYPES_STORED
from mq.protocol.names import (
    BENCHMARK_TOPIC,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    NameRefused,
    check_topic,
    is_system_topic,
    pop_retry_topic,
    retry_topic_readers,
)
from mq.protocol.properties import safe_value
from mq.protocol.requests import topics as wire_topics
from mq.protocol.requests.compaction_attributes import (
    CLEANUP_POLICY,
    COMPACTION,
    DELETE_RETENTION,
    check_compaction,
    is_compacted,
)
from mq.protocol.requests.lite_attributes import LITE, AttributeInvalid, check_topic_attributes, is_lite
from mq.protocol.requests.quota_attributes import PREFIX, check_quotas
from mq.protocol.requests.retention_attributes import (
    RESERVE_BYTES,
    RESERVE_TIME,
    check_reserve_bytes,
    check_reserve_time,
    reserve_bytes,
    reserve_hours,
)
from mq.protocol.requests.topics import (
    DeleteTopicInBroker,
    TopicConfigList,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)

QUEUES_MAX = 1024
TOPICS_PER_REQUEST_MAX = 1000
_NAME_LENGTH_MAX = 150


class Topics(Service):
    """Creates, changes and deletes topics for clients."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._creations = Creations("topic")
        self._tails = context.queue_tails
        self._ends = context.store.ends
        self._wall_clock_ms = context.wall_clock_ms
        self._retention_hours = context.settings.retention_hours
        self._has_tiers = context.settings.has_tiers

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._retention_hours = settings.retention_hours

    def routes(self) -> Iterator[Route]:
        yield Route(UpdateAndCreateTopic, self.handle_put, leader_only=True)
        yield Route(UpdateAndCreateTopicList, self.handle_put_list, leader_only=True)
        yield Route(DeleteTopicInBroker, self.handle_delete, leader_only=True)

    def handle_put(self, call: Call[UpdateAndCreateTopic]) -> None:
        """Request code 17: create or change a topic; respond once that is replicated."""
        ext = call.request.ext
        config = wire_topics.TopicConfig(
            topic_name=ext.topic,
            read_queue_nums=ext.read_queue_nums,
            write_queue_nums=ext.write_queue_nums,
            perm=ext.perm,
            topic_filter_type=ext.topic_filter_type,
            topic_sys_flag=ext.topic_sys_flag or 0,
            order=ext.order,
            attributes=attribute_changes(ext.attributes or ""),
        )
        self._put(call, [config])

    def handle_put_list(self, call: Call[UpdateAndCreateTopicList]) -> None:
        """Request code 18: create or change several topics, or none if one is refused."""
        topics = decode_body(TopicConfigList.decode, call.body).topics
        if not 1 <= len(topics) <= TOPICS_PER_REQUEST_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(topics)} topics in one request; allowed: 1 to {TOPICS_PER_REQUEST_MAX}",
            )
        self._put(call, topics)

    def handle_delete(self, call: Call[DeleteTopicInBroker]) -> None:
        """Request code 215: delete a topic with its queues and all offsets in it; respond once that is replicated."""
        topic = call.request.ext.topic
        _check_name(topic)
        if self._is_system(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the topic {topic} is conflict with system reserved words")
        self._tails.deletions_asked[topic] += 1
        continued = self._metadata.format_level.level >= LEVEL_OF_CONTINUED_OFFSETS
        # The topic also if it does not exist: its creation may be in flight.
        names = [*self._pop_retry_topics(topic), topic] if continued else [topic]
        assert len({*names}) == len(names), f"{names} are to be deleted with the topic {topic}, some of them twice"
        now_ms = self._wall_clock_ms()
        config = self._metadata.topics.get(topic)
        level = self._metadata.format_level.level
        restorable = (
            level >= LEVEL_OF_DELETED_TOPICS
            and call.request.ext.restorable
            and not is_lite({} if config is None else config.attributes)
        )
        who = f"{safe_value(call.request.ext.access_key or call.request.ext.operator) or 'an unnamed operator'}"
        by = f"{who[:_NAME_LENGTH_MAX]} from {call.connection.peer}"[:DELETER_LENGTH_MAX] if restorable else ""
        commands = [
            encode_command(
                DeleteTopic(
                    name=name,
                    timestamp_ms=now_ms,
                    continued=continued,
                    restorable=restorable,
                    along_with=topic if restorable and name != topic else "",
                    by=by,
                )
            )
            for name in names
        ]
        if restorable and config is not None:
            commands = [*self._room_for_restorable(), *commands]

        def check() -> None:
            there = self._metadata.topics.get(topic)
            if restorable and there is not None and is_lite(there.attributes):
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{topic} was created just now; send the request again")

        on_framed = None if continued else partial(self._tails.reset, topic)
        replicate(self._appender, commands, call, what="a topic's deletion", on_framed=on_framed, check=check)

    def _room_for_restorable(self) -> list[bytes]:
        """Return the commands that drop the oldest deleted topics, if too many can be restored already."""
        rows, limits = self._metadata.deleted_topics.rows, self._metadata.limits
        count, size = len(rows), sum(row.rows for row in rows.values())
        commands: list[bytes] = []
        for name, row in rows.items():
            if count < limits.restorable_topics_max and size < limits.restorable_rows_max:
                break
            commands.append(encode_command(ForgetTopic(name=name, ends=sorted(self._ends(name).items()))))
            count, size = count - 1, size - row.rows
        return commands

    def topic_changed(self, topic: str) -> None:
        if topic in self._metadata.topics:
            self._creations.exists(topic)

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """Return the retry topics of ``topic``'s groups that pop, without those that other topics use, too."""
        topics, offsets = self._metadata.topics, self._metadata.consumer_offsets
        groups = self._metadata.groups.keys() | {group for group, _ in offsets}
        retry_topics = {pop_retry_topic(group, topic) for group in groups} & topics.keys() - {topic}
        return sorted(
            name
            for name in retry_topics
            if all(
                of == topic or (of and (group, of) not in offsets)
                for group, of in retry_topic_readers(name, groups, topics)
            )
        )

    def _put(self, call: Call[Any], topics: Sequence[wire_topics.TopicConfig]) -> None:
        now_ms = self._wall_clock_ms()
        commands = [encode(PutTopic(config=self._parse_config(topic), timestamp_ms=now_ms)) for topic in topics]
        names = {topic.topic_name for topic in topics}
        creation = self._creations.begin(names, self._metadata.topics)
        if len(self._metadata.topics) + len(names - self._metadata.topics.keys()) > self._metadata.limits.topics_max:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, self._full())

        def check() -> None:
            # Other requests may have used up the room since, and others may have made room again.
            assert creation.names <= names, f"{creation.names - names} are missing, and nobody created them"
            if creation.names:
                is_full = not all(map(self._metadata.has_room_for_topic, creation.names))
                remark = self._full() if is_full else self._creations.not_created(creation)
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)

        replicate(self._appender, commands, call, what="a topic", check=check)

    def _full(self) -> str:
        return f"there are {len(self._metadata.topics)} topics; maximum: {self._metadata.limits.topics_max}"

    def _parse_config(self, request: wire_topics.TopicConfig) -> TopicConfig:
        """Parse the requested configuration. Raises RequestRefused."""
        name = request.topic_name
        _check_name(name)
        if self._is_system(name) and name != BENCHMARK_TOPIC:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the topic {name} is conflict with system reserved words"
            )
        for kind, count in (("read", request.read_queue_nums), ("write", request.write_queue_nums)):
            if not 1 <= count <= QUEUES_MAX:
                remark = f"{count} {kind} queues are asked for; allowed: 1 to {QUEUES_MAX}"
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        if not 0 <= request.perm <= 7:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"perm is {request.perm}; allowed: 0 to 7")
        config = self._metadata.topics.get(name)
        attributes = self._attributes(config, request.attributes)
        self._check_lite(name, None if config is None else config.attributes, attributes)
        self._check_compaction(name, request.attributes, attributes)
        becomes_lite = is_lite(attributes) and not (config is not None and is_lite(config.attributes))
        if sets(request.attributes, RESERVE_TIME) or sets(request.attributes, RESERVE_BYTES) or becomes_lite:
            self._check_retention(attributes)
        if any(each.lstrip("+").startswith(PREFIX) for each in request.attributes):
            self._check_quotas(attributes)
        assert config is None or config.name == name, f"the topic {name} is known as {config}"
        return TopicConfig(
            name=name,
            read_queues=request.read_queue_nums,
            write_queues=request.write_queue_nums,
            perm=request.perm,
            filter_type=request.topic_filter_type,
            sys_flag=request.topic_sys_flag,
            order=request.order,
            attributes=attributes,
        )

    @staticmethod
    def _attributes(config: TopicConfig | None, changes: Mapping[str, str]) -> dict[str, str]:
        """Return the attributes of a topic after changes. Raises RequestRefused for an unknown message type."""
        attributes = merge_attributes(config.attributes if config is not None else {}, changes)
        kind = attributes.get(MESSAGE_TYPE_ATTRIBUTE, PRIORITY)
        if kind not in TYPES_STORED and sets(changes, MESSAGE_TYPE_ATTRIBUTE):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{MESSAGE_TYPE_ATTRIBUTE} is {kind[:80]!r}; allowed: {', '.join(sorted(TYPES_STORED))}",
            )
        return attributes

    def _check_lite(self, name: str, before: Mapping[str, str] | None, after: Mapping[str, str]) -> None:
        """Raises RequestRefused for attributes that no topic with lite topics can have; ``before`` is None for a new
        topic.
        """
        try:
            check_topic_attributes(after)
        except AttributeInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not is_lite(after) and not is_lite(before or {}):
            return
        check_level(self._metadata.format_level.level, LEVEL_OF_LITE_TOPICS, "lite topics need")
        if before is not None and is_lite(before) is not is_lite(after) and MESSAGE_TYPE_ATTRIBUTE in before:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{MESSAGE_TYPE_ATTRIBUTE} of the topic {name} cannot change from or to {LITE}: delete the topic, and "
                "create it again",
            )

    def _check_compaction(self, name: str, changes: Mapping[str, str], attributes: Mapping[str, str]) -> None:
        """Raise RequestRefused if the topic is to be compacted but cannot be, or members do not support that."""
        of_policy = CLEANUP_POLICY, DELETE_RETENTION
        if not is_compacted(attributes) and not any(sets(changes, each) for each in of_policy):
            return
        try:
            check_compaction(attributes)
        except AttributeInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if not is_compacted(attributes):
            return
        if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"{name} cannot be compacted: each of its messages is to be consumed"
            )
        if self._has_tiers:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{CLEANUP_POLICY}={COMPACTION} is not possible on brokers that serve messages from an archive: they "
                "keep all messages; leave the settings local_retention_hours and local_retention_bytes unset",
            )
        check_level(self._metadata.format_level.level, LEVEL_OF_COMPACTION, f"{CLEANUP_POLICY}={COMPACTION} needs")

    def _check_retention(self, attributes: Mapping[str, str]) -> None:
        """Raise RequestRefused for a retention that is too long, or that members do not support."""
        try:
            check_reserve_time(attributes, self._retention_hours)
            check_reserve_bytes(attributes)
        except AttributeInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if reserve_hours(attributes) is not None or reserve_bytes(attributes) is not None:
            level = self._metadata.format_level.level
            check_level(level, LEVEL_OF_TOPIC_RETENTION, f"{RESERVE_TIME} and {RESERVE_BYTES} need")

    def _check_quotas(self, attributes: Mapping[str, str]) -> None:
        """Raise RequestRefused for unknown quotas, or if older members would ignore them."""
        try:
            check_quotas(attributes)
        except AttributeInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        check_level(self._metadata.format_level.level, LEVEL_OF_QUOTAS, "quotas need")

    def _is_system(self, topic: str) -> bool:
        config = self._metadata.topics.get(topic)
        return is_system_topic(topic) or (config is not None and config.system)


def _check_name(topic: str) -> None:
    try:
        check_topic(topic)
    except NameRefused as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
