"""Which settings a new topic gets in the broker groups that lack it."""

from __future__ import annotations

import pytest

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.topic_settings import TopicSettings, settings_to_create
from mq.protocol.requests.topics import TopicConfig

NOTHING = TopicSettings()
FOUR_SAID = TopicSettings(4, 4, 6, order=False, message_type="NORMAL")
FOUR = TopicConfig("T", 4, 4)
FIFO = TopicConfig("T", 4, 2, perm=4, order=True, attributes={"message.type": "FIFO"})


def test_new_topic_is_created_everywhere_with_the_defaults() -> None:
    settings, groups = settings_to_create("T", NOTHING, {}, ["b", "a"])
    assert (settings, groups) == (TopicSettings(8, 8, 6, order=False), ["a", "b"])


def test_open_settings_are_taken_from_groups_that_have_the_topic() -> None:
    settings, groups = settings_to_create("T", NOTHING, {"a": FIFO, "b": FIFO}, ["a", "b", "c", "d"])
    assert (settings, groups) == (TopicSettings(4, 2, 4, order=True, message_type="FIFO"), ["c", "d"])


def test_new_group_gets_settings_that_no_option_sets() -> None:
    """Filter type, flags and attributes were those of a new topic."""
    config = TopicConfig("T", 4, 4, 6, "MULTI_TAG", 3, attributes={"owner": "a, b", "message.type": "FIFO"})
    settings, _ = settings_to_create("T", NOTHING, {"a": config}, ["a", "b"])
    assert (settings.filter_type, settings.sys_flag) == ("MULTI_TAG", 3)
    assert (settings.attributes, settings.message_type) == ((("owner", "a, b"),), "FIFO")
    other = TopicConfig("T", 4, 4, 6, "SINGLE_TAG", 3)
    with pytest.raises(CommandFailed, match="no option sets filter type"):
        settings_to_create("T", FOUR_SAID, {"a": config, "b": other}, ["c"])


def test_stated_settings_apply_to_the_named_group() -> None:
    settings, groups = settings_to_create("T", TopicSettings(1, 1), {"a": FIFO}, ["b"])
    assert (settings, groups) == (TopicSettings(1, 1, 4, order=True, message_type="FIFO"), ["b"])


@pytest.mark.parametrize(
    ("wanted", "known", "groups", "reason"),
    [
        (NOTHING, {"a": FOUR}, ["a"], "already exists: 4 queues, perm rw in a; change it"),
        (NOTHING, {"a": FOUR, "b": FIFO}, ["a"], "already exists: 4 queues, perm rw in a; change it"),
        (TopicSettings(5, 5), {"a": FOUR}, ["a", "b"], "with other settings: 4 queues, perm rw in a. Nothing was"),
        (TopicSettings(order=True), {"a": FOUR}, ["a", "b"], "with other settings"),
        (TopicSettings(message_type="FIFO"), {"a": FOUR}, ["a", "b"], "with other settings"),
        (
            NOTHING,
            {"a": FOUR, "b": FIFO},
            ["a", "b", "c"],
            "different settings in the broker groups that have it: 4 queues, perm rw in a; "
            "4 read and 2 written queues, perm r, in order, message type fifo in b. Say",
        ),
    ],
)
def test_invalid_input_is_refused(
    wanted: TopicSettings, known: dict[str, TopicConfig], groups: list[str], reason: str
) -> None:
    with pytest.raises(CommandFailed) as refused:
        settings_to_create("T", wanted, known, groups)
    assert reason in str(refused.value)
    assert refused.value.exit_code == EXIT_FAILED


def test_groups_may_differ_if_all_settings_are_given() -> None:
    wanted = TopicSettings(1, 1, 6, order=False, message_type="NORMAL")
    assert settings_to_create("T", wanted, {"a": FOUR, "b": FIFO}, ["c"]) == (wanted, ["c"])
