"""The settings of a topic in the broker groups, and what `raftmq topic create` gives to the groups that lack it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.client.admin import MESSAGE_TYPE_ATTRIBUTE, MESSAGE_TYPES
from mq.protocol.bodies import TopicConfig

PERMS = {"rw": 6, "r": 4, "w": 2, "none": 0}
QUEUES = 8


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic in one broker group; None where the broker chooses, or nobody has said."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    message_type: str | None = None

    @classmethod
    def of(cls, config: TopicConfig) -> TopicSettings:
        """Those of an existing topic."""
        kind = config.attributes.get(MESSAGE_TYPE_ATTRIBUTE)
        return cls(config.read_queue_nums, config.write_queue_nums, config.perm, config.order, kind)

    def __str__(self) -> str:
        kind = "" if self.message_type is None else f", message type {self.message_type.lower()}"
        read, write = self.read_queues, self.write_queues
        queues = f"{read}" if read == write else f"{read} read and {write} written"
        order = ", in order" if self.order else ""
        return f"{queues} queues, perm {perm_words(self.perm or 0)}{order}{kind}"


def settings_to_create(
    topic: str, wanted: TopicSettings, known: Mapping[str, TopicConfig], groups: Iterable[str]
) -> tuple[TopicSettings, list[str]]:
    """The settings for the broker groups that lack a topic, and the names of these groups, sorted.

    What ``wanted`` leaves open is taken from the groups that have the topic, which are ``known``; if none has it: 8
    queues, readable and writable. ``groups`` are those in which it shall be.

    Raises CommandFailed if all of them have it, or one of them has it with other settings, or what is left open differs
    between the groups that have it.
    """
    groups = sorted(groups)
    missing = [each for each in groups if each not in known]
    if not missing:
        there = shape({each: known[each] for each in groups})
        raise CommandFailed(f"topic {topic} exists already: {there}; change it with raftmq topic update", EXIT_FAILED)
    if not known:
        return _filled(wanted, TopicSettings(QUEUES, QUEUES, PERMS["rw"], order=False)), missing
    patterns = {_filled(wanted, TopicSettings.of(config)) for config in known.values()}
    if len(patterns) > 1:
        raise CommandFailed(
            f"topic {topic} has different settings in the broker groups that have it: {shape(known)}. Say which ones "
            f"it shall have in {', '.join(missing)}, with --queues, --perm, --order, --no-order and --message-type",
            EXIT_FAILED,
        )
    [settings] = patterns
    others = {each: known[each] for each in groups if each in known and TopicSettings.of(known[each]) != settings}
    if others:
        raise CommandFailed(
            f"topic {topic} exists with other settings: {shape(others)}. Nothing was changed. To create it in "
            f"{', '.join(missing)} with settings of its own, pass --group; to change it, use raftmq topic update",
            EXIT_FAILED,
        )
    return settings, missing


def _filled(wanted: TopicSettings, pattern: TopicSettings) -> TopicSettings:
    return TopicSettings(
        pattern.read_queues if wanted.read_queues is None else wanted.read_queues,
        pattern.write_queues if wanted.write_queues is None else wanted.write_queues,
        pattern.perm if wanted.perm is None else wanted.perm,
        pattern.order if wanted.order is None else wanted.order,
        pattern.message_type if wanted.message_type is None else wanted.message_type,
    )


def shape(configs: Mapping[str, TopicConfig]) -> str:
    """The settings of a topic in each broker group, as text."""
    return "; ".join(f"{TopicSettings.of(config)} in {broker}" for broker, config in sorted(configs.items()))


def perm_bits(perm: str) -> int:
    """The number for rw, r, w or none. Raises CommandFailed."""
    if perm not in PERMS:
        raise CommandFailed(f"--perm {perm!r} is not one of {', '.join(PERMS)}")
    return PERMS[perm]


def perm_words(perm: int) -> str:
    """The word for a number, or the number."""
    return next((name for name, bits in PERMS.items() if bits == perm), str(perm))


def kind_of(message_type: str | None) -> str | None:
    """The message type as brokers know it. Raises CommandFailed."""
    if message_type is not None and message_type.upper() not in MESSAGE_TYPES:
        raise CommandFailed(f"--message-type {message_type!r} is not one of {', '.join(MESSAGE_TYPES).lower()}")
    return None if message_type is None else message_type.upper()
