"""Checks names of topics and groups, and composes the names of system topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from typing import Final

from mq.protocol.errors import ProtocolError

TOPIC_BYTES_MAX: Final = 127
GROUP_BYTES_MAX: Final = 120
"""Then the retry topic of every group, ``%RETRY%`` plus its name, is a valid topic for all clients."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
LITE_PREFIX: Final = "%LMQ%$"
"""The queue of a lite topic is queue 0 of this prefix, the parent topic, ``$`` and the name of the lite topic."""
LITE_NAME_MAX: Final = 64
"""Characters of the name of a lite topic."""

AUTO_CREATE_TEMPLATE: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
UNENDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages that were given up after the last check-back."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
"""The topic of RocketMQ's benchmarks, in which everybody may send."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose progress in the topics of half messages shows tools the progress of transactions."""
METADATA_TOPIC: Final = "rmq_sys_raftmq_meta"
"""Records of this topic change a group's replicated metadata. Clients may not write to it."""

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        UNENDED_TOPIC,
        SELF_TEST_TOPIC,
        "OFFSET_MOVED_EVENT",
        METADATA_TOPIC,
    }
)

SYSTEM_TOPICS: Final = SEND_FORBIDDEN_TOPICS | {AUTO_CREATE_TEMPLATE, BENCHMARK_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"}

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "SCHEDULE_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        TRANSACTION_GROUP,
    }
)

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class NameRefused(ProtocolError):
    """The name is not valid for a topic or group. ``reason`` is the cause."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check_topic(topic: str) -> None:
    """Raises NameRefused unless ``topic`` has 1 to 127 of the allowed characters.

    A valid name is a single plain file name: without dots, slashes and control characters.
    """
    _check("topic", topic, TOPIC_BYTES_MAX)


def check_group(group: str) -> None:
    """Raises NameRefused unless ``group`` has 1 to 120 of the allowed characters."""
    _check("group", group, GROUP_BYTES_MAX)


def check_queue_name(topic: str) -> None:
    """Raises NameRefused unless ``topic`` is a valid name of a topic, or of the queue of a lite topic."""
    if topic.startswith(LITE_PREFIX):
        parent, _, lite = topic[len(LITE_PREFIX) :].partition("$")
        check_topic(parent)
        check_lite_topic(lite)
    else:
        check_topic(topic)


def check_lite_topic(lite: str) -> None:
    """Raises NameRefused unless ``lite`` has 1 to 64 of the characters that are allowed in topic names."""
    _check("lite topic", lite, LITE_NAME_MAX)


def lite_queue(parent: str, lite: str) -> str:
    """Return the name under which brokers store the queue of a lite topic."""
    return f"{LITE_PREFIX}{parent}${lite}"


def is_lite_queue(topic: str) -> bool:
    """Whether ``topic`` is the name of a lite topic's queue."""
    return topic.startswith(LITE_PREFIX)


def split_lite_queue(queue: str) -> tuple[str, str]:
    """Split the name of a lite topic's queue into the parent topic and the lite topic."""
    parent, _, lite = queue[len(LITE_PREFIX) :].partition("$")
    return parent, lite


def is_system_topic(topic: str) -> bool:
    """Whether ``topic`` is a system topic, which clients may not create or delete."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic of the messages that failed in ``group`` and will be redelivered."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that failed in ``group`` at every attempt."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic to which consumers of a cluster send replies."""
    return cluster + REPLY_TOPIC_SUFFIX


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic of the messages of ``topic`` that ``group`` popped but did not acknowledge in time.

    Messages from this topic return to it.
    """
    return fitted_topic(topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}")


def retry_topic_readers(name: str, groups: Container[str], topics: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the groups that get messages from the retry topic ``name``, as pairs of group and topic.

    The topic is empty if the group pulls: its only retry topic is for all its topics. There may be several pairs, since
    names may contain the separator: ``%RETRY%a_b_c`` is for group ``a`` and topic ``b_c``, or for ``a_b`` and ``c``.
    """
    parts = name.removeprefix(RETRY_PREFIX).split("_")
    for count in range(1, len(parts)):
        group, topic = "_".join(parts[:count]), "_".join(parts[count:])
        if group in groups and topic in topics:
            yield group, topic
    if (group := "_".join(parts)) in groups:
        yield group, ""


def topics_of_group(group: str, groups: Container[str], topics: Collection[str]) -> list[str]:
    """Return the retry and dead letter topics of ``group``; first the retry topics of its pops, among ``topics``.

    Leaves out topics that another one of ``groups`` may use, too; see `retry_topic_readers`.
    """
    pop_retry_topics = {pop_retry_topic(group, topic) for topic in topics if not topic.startswith(RETRY_PREFIX)}
    own = (
        name
        for name in pop_retry_topics.intersection(topics)
        if all(reader == group for reader, _ in retry_topic_readers(name, groups, topics))
    )
    return [*sorted(own), retry_topic(group), dead_letter_topic(group)]


def fitted_topic(name: str) -> str:
    """Return a composed topic name, shortened to a prefix and a hash if it is too long."""
    if len(name) <= TOPIC_BYTES_MAX:
        return name
    import hashlib  # here: with OpenSSL's part it takes half a megabyte of a client's memory

    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: TOPIC_BYTES_MAX - len(digest) - 1]}_{digest}"


def _check(kind: str, name: str, length_max: int) -> None:
    if not name:
        raise NameRefused(f"the {kind} has no name")
    if not isinstance(name, str):
        raise NameRefused(f"the {kind} name must be a str, not {type(name).__name__}")
    if len(name) > length_max:
        raise NameRefused(f"the {kind} name {name[:40]}... has {len(name)} characters; maximum: {length_max}")
    if _ALLOWED.fullmatch(name) is None:
        raise NameRefused(f"the {kind} name {name!r} has characters other than letters, digits, %, |, _ and -")
