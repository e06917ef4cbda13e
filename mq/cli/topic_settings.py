"""Decides which settings `raftmq topic create` gives a topic in the broker groups that lack it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE, MESSAGE_TYPES
from mq.protocol.requests.topics import TopicConfig

PERMS = {"rw": 6, "r": 4, "w": 2, "none": 0}
QUEUES = 8


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic in one broker group. None: the broker chooses, or no value was given.

    No option of the command sets the filter type and the flags; ``attributes`` are the others than the message type.
    """

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    message_type: str | None = None
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_config(cls, config: TopicConfig) -> TopicSettings:
        """Return the settings of an existing topic."""
        kind = config.attributes.get(MESSAGE_TYPE_ATTRIBUTE)
        others = tuple(sorted(each for each in config.attributes.items() if each[0] != MESSAGE_TYPE_ATTRIBUTE))
        queues = config.read_queue_nums, config.write_queue_nums
        return cls(*queues, config.perm, config.order, kind, config.topic_filter_type, config.topic_sys_flag, others)

    def __str__(self) -> str:
        kind = "" if self.message_type is None else f", message type {self.message_type.lower()}"
        read, write = self.read_queues, self.write_queues
        queues = f"{read}" if read == write else f"{read} read and {write} written"
        order = ", in order" if self.order else ""
        usual = TopicSettings()
        rest = "" if self.filter_type == usual.filter_type else f", filter type {self.filter_type}"
        rest += "" if self.sys_flag == usual.sys_flag else f", flags {self.sys_flag}"
        rest += "".join(f", {name}={value}" for name, value in self.attributes)
        return f"{queues} queues, perm {perm_words(self.perm or 0)}{order}{kind}{rest}"


def settings_to_create(
    topic: str, choice: TopicSettings, configs: Mapping[str, TopicConfig], groups: Iterable[str]
) -> tuple[TopicSettings, list[str]]:
    """Return the settings for the broker groups that lack a topic, and the sorted names of these groups.

    Settings that ``choice`` leaves open are taken from the groups that have the topic, ``configs``; if none has it:
    8 queues, readable and writable. ``groups`` are those in which it shall be.

    Raises CommandFailed if all of them have it, or one of them has it with other settings, or what is left open differs
    between the groups that have it.
    """
    groups = sorted(groups)
    new_groups = [each for each in groups if each not in configs]
    if not new_groups:
        there = shape({each: configs[each] for each in groups})
        raise CommandFailed(f"topic {topic} already exists: {there}; change it with raftmq topic update", EXIT_FAILED)
    if not configs:
        return _fill_in(choice, TopicSettings(QUEUES, QUEUES, PERMS["rw"], order=False)), new_groups
    patterns = {_fill_in(choice, TopicSettings.from_config(config)) for config in configs.values()}
    if len(patterns) > 1:
        remedy = "with --queues, --perm, --order, --no-order, --message-type and --attribute"
        if len({(each.filter_type, each.sys_flag) for each in patterns}) > 1:
            remedy = "in a document for raftmq import: no option sets filter type and flags"
        elif len({frozenset(dict(each.attributes)) for each in patterns}) > 1:
            remedy = "in a document for raftmq import: no option leaves an attribute out"
        raise CommandFailed(
            f"topic {topic} has different settings in the broker groups that have it: {shape(configs)}. Say which ones "
            f"it shall have in {', '.join(new_groups)}, {remedy}",
            EXIT_FAILED,
        )
    [settings] = patterns
    own = {each: configs[each] for each in groups if each in configs}
    others = {each: config for each, config in own.items() if TopicSettings.from_config(config) != settings}
    if others:
        raise CommandFailed(
            f"topic {topic} exists with other settings: {shape(others)}. Nothing was changed. To create it in "
            f"{', '.join(new_groups)} with other settings, pass --group; to change it, use raftmq topic update",
            EXIT_FAILED,
        )
    return settings, new_groups


def _fill_in(settings: TopicSettings, pattern: TopicSettings) -> TopicSettings:
    return replace(
        pattern,
        read_queues=pattern.read_queues if settings.read_queues is None else settings.read_queues,
        write_queues=pattern.write_queues if settings.write_queues is None else settings.write_queues,
        perm=pattern.perm if settings.perm is None else settings.perm,
        order=pattern.order if settings.order is None else settings.order,
        message_type=pattern.message_type if settings.message_type is None else settings.message_type,
        attributes=tuple(sorted({**dict(pattern.attributes), **dict(settings.attributes)}.items())),
    )


def shape(configs: Mapping[str, TopicConfig]) -> str:
    """Describe the settings of a topic in each broker group as text."""
    return "; ".join(f"{TopicSettings.from_config(config)} in {broker}" for broker, config in sorted(configs.items()))


def perm_bits(perm: str) -> int:
    """Return the number for rw, r, w or none. Raises CommandFailed."""
    if perm not in PERMS:
        raise CommandFailed(f"--perm {perm!r} is not one of {', '.join(PERMS)}")
    return PERMS[perm]


def perm_words(perm: int) -> str:
    """Return the word for a permission number, or the number if it has no word."""
    return next((name for name, bits in PERMS.items() if bits == perm), str(perm))


def kind_of(message_type: str | None) -> str | None:
    """Return the message type as brokers name it. Raises CommandFailed."""
    if message_type is not None and message_type.upper() not in MESSAGE_TYPES:
        raise CommandFailed(f"--message-type {message_type!r} is not one of {', '.join(MESSAGE_TYPES).lower()}")
    return None if message_type is None else message_type.upper()
