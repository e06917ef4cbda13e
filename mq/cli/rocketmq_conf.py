"""RocketMQ's ``broker.conf``: converts its keys to settings, and explains keys that do not apply. Pure.

The file is in the format of Java properties, one KEY=VALUE per line. With DLedger's keys it describes a replica of a
group, which is what a broker is here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple


class ConfInvalid(Exception):
    """The file is invalid. The message names the line and the reason."""


class ConvertedConf(NamedTuple):
    """Settings with our names, and a sentence for each key that was not converted.

    ``origins`` says from which line and key each setting comes.
    """

    settings: dict[str, Any]
    warnings: list[str]
    origins: dict[str, str]


class _ConfLine(NamedTuple):
    number: int
    key: str
    value: str


class _ConvertedKey(NamedTuple):
    """A key that is converted."""

    setting: str
    convert: Callable[[str], Any]
    about: str = ""


def _text(value: str) -> str:
    return value


def _integer(value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", value):
        raise ValueError(f"{value!r} is not an integer")
    return int(value)


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{value!r} is neither true nor false")
    return value.lower() == "true"


def _seconds(value: str) -> float:
    return _integer(value) / 1000


def _percent(value: str) -> float:
    return _integer(value) / 100


def _hours_of_day(value: str) -> int:
    """Read the first of the hours: RocketMQ accepts several, raftmq one."""
    return _integer(value.split(";")[0])


def _peers(value: str) -> str:
    peers = []
    for part in filter(None, (each.strip() for each in value.split(";"))):
        name, dash, address = part.partition("-")
        if not dash or ":" not in address:
            raise ValueError(f"{part!r} is not ID-HOST:PORT")
        peers.append(f"{name}@{address}")
    return ",".join(peers)


TAKEN: Final[Mapping[str, _ConvertedKey]] = {
    "brokerClusterName": _ConvertedKey("cluster", _text),
    "brokerName": _ConvertedKey(
        "group", _text, "one Raft group; with DLedger, brokerName and dLegerGroup are one name"
    ),
    "namesrvAddr": _ConvertedKey("namesrv", _text),
    "storePathRootDir": _ConvertedKey("data_dir", _text),
    "mapedFileSizeCommitLog": _ConvertedKey("segment_bytes", _integer),
    "mappedFileSizeCommitLog": _ConvertedKey("segment_bytes", _integer),
    "maxMessageSize": _ConvertedKey("message_bytes_max", _integer),
    "deleteWhen": _ConvertedKey("delete_when", _hours_of_day, "the first hour, if there are several"),
    "fileReservedTime": _ConvertedKey("retention_hours", _integer),
    "diskMaxUsedSpaceRatio": _ConvertedKey("disk_expire_ratio", _percent),
    "autoCreateTopicEnable": _ConvertedKey("auto_create_topics", _boolean),
    "autoCreateSubscriptionGroup": _ConvertedKey("auto_create_groups", _boolean),
    "defaultTopicQueueNums": _ConvertedKey("default_topic_queues", _integer),
    "enablePropertyFilter": _ConvertedKey("sql_filter", _boolean, "SQL92 filters are on unless this is false"),
    "messageDelayLevel": _ConvertedKey("delay_levels", _text),
    "timerMaxDelaySec": _ConvertedKey("timer_delay_max_seconds", _integer),
    "rejectTransactionMessage": _ConvertedKey("transactions", lambda value: not _boolean(value)),
    "transactionTimeOut": _ConvertedKey("transaction_timeout_seconds", _seconds),
    "transactionCheckInterval": _ConvertedKey("transaction_check_seconds", _seconds),
    "transactionCheckMax": _ConvertedKey("transaction_checks_max", _integer),
    "priorityOrderAsc": _ConvertedKey("priority_order_asc", _boolean),
    "storeReplyMessageEnable": _ConvertedKey("store_reply_message", _boolean),
    "maxTransferCountOnMessageInMemory": _ConvertedKey("pull_messages_max", _integer),
    "maxTransferBytesOnMessageInMemory": _ConvertedKey("pull_bytes_max", _integer),
    "maxTransferCountOnMessageInDisk": _ConvertedKey("slow_pull_messages_max", _integer),
    "maxTransferBytesOnMessageInDisk": _ConvertedKey("slow_pull_bytes_max", _integer),
    "dLegerPeers": _ConvertedKey("peers", _peers, "the replicas and their replication addresses"),
    "dLegerSelfId": _ConvertedKey("node_id", _text),
    "preferredLeaderId": _ConvertedKey("priority", _text, "1 on the replica that the key names, else 0"),
}
"""Settings by RocketMQ's key. ``listenPort`` and ``brokerIP1`` become one address, and are handled separately."""

_NO_ROLES: Final = "replicas of a group elect their leader"
_ALWAYS: Final = "always on"
_NO_POOLS: Final = "one thread serves all requests; there are no thread pools"
_NO_HA: Final = "Raft replicates the log"
NOT_APPLICABLE: Final[Mapping[str, str]] = {
    "brokerId": _NO_ROLES,
    "brokerRole": _NO_ROLES,
    "haMasterAddress": _NO_HA,
    "haListenPort": _NO_HA,
    "haSendHeartbeatInterval": _NO_HA,
    "haTransferBatchSize": _NO_HA,
    "haSlaveFallbehindMax": _NO_HA,
    "brokerIP2": _NO_HA,
    "enableDLegerCommitLog": _ALWAYS,
    "enableDledgerCommitLog": _ALWAYS,
    "dLegerGroup": "brokerName names the group",
    "enableControllerMode": _NO_ROLES,
    "controllerAddr": _NO_ROLES,
    "slaveReadEnable": "followers always serve consumers that lag",
    "flushDiskType": "an acknowledged message is on disk on a majority; for less, set durability = 'quorum-memory'",
    "storePathCommitLog": "the log is in storePathRootDir",
    "storePathConsumeQueue": "the queues are in storePathRootDir",
    "storePathIndex": "the index is in storePathRootDir",
    "storeCheckpoint": "the checkpoint is in storePathRootDir",
    "abortFile": "the start detects how the last run ended",
    "mapedFileSizeConsumeQueue": "the size of queue files is fixed",
    "brokerPermission": "set the permissions of each topic instead",
    "traceTopicEnable": _ALWAYS,
    "msgTraceTopicName": "the name of the trace topic is fixed",
    "traceOn": _ALWAYS,
    "longPollingEnable": _ALWAYS,
    "shortPollingTimeMills": "pulls always use long polling",
    "accessMessageInMemoryMaxRatio": "set slow_consumer_bytes instead",
    "messageIndexEnable": _ALWAYS,
    "messageIndexSafe": _ALWAYS,
    "transientStorePoolEnable": "messages are written to the log directly",
    "warmMapedFileEnable": "files are not mapped",
    "rocketmqHome": "aclEnable uses the plain_acl.yml in the directory of this file",
    "autoCreateSystemTopic": _ALWAYS,
    "clusterTopicEnable": _ALWAYS,
    "brokerTopicEnable": _ALWAYS,
    "rejectPullConsumerEnable": "pull consumers are always served",
    "notifyConsumerIdsChangedEnable": _ALWAYS,
    "registerBrokerTimeoutMills": "set register_seconds instead",
    "registerNameServerPeriod": "set register_seconds instead",
    "forceRegister": _ALWAYS,
    "compressedRegister": _ALWAYS,
    "timerWheelEnable": _ALWAYS,
    "litePullMessageEnable": _ALWAYS,
    "enableScheduleMessageStats": _ALWAYS,
    "useEpollNativeSelector": _ALWAYS,
}
"""Keys that do not apply, and why."""

_FAMILIES: Final = (
    (re.compile(r".*(ThreadPool|PoolQueue|WaitTimeMills|ThreadNums).*"), _NO_POOLS),
    (re.compile(r"(server|client|netty)[A-Z].*|.*Selector.*"), "one event loop serves all sockets"),
    (
        re.compile(r"flush.*|commitInterval.*|commitCommitLog.*|.*FlushConsumeQueue.*"),
        "every write is synced",
    ),
    (
        re.compile(r"(os|)PageCache.*|.*MappedFile.*|.*MapedFile.*|fastFailIfNoBufferInStorePool"),
        "files are not mapped",
    ),
    (re.compile(r"dLeger.*|dledger.*|isEnableBatchPush|maxInflight.*"), _NO_HA),
    (re.compile(r"ha[A-Z].*|.*[sS]lave.*|.*Controller.*|.*SyncStateSet.*|.*Epoch.*"), _NO_HA),
    (re.compile(r"metrics.*"), "metrics are served over HTTP: see metrics_listen"),
)

_ADDRESS_KEYS: Final = ("listenPort", "brokerIP1", "aclEnable")


def convert(text: str, directory: Path) -> ConvertedConf:
    """Convert the text of a ``broker.conf`` in ``directory`` to settings. Raises ConfInvalid."""
    lines = _parse(text)
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    origins: dict[str, str] = {}
    for line in lines.values():
        if (conversion := TAKEN.get(line.key)) is not None:
            if conversion.setting in origins:
                raise ConfInvalid(f"line {line.number}: {line.key} means the same as {origins[conversion.setting]}")
            settings[conversion.setting] = _convert_value(line, conversion.convert)
            origins[conversion.setting] = f"line {line.number}: {line.key}"
        elif line.key not in _ADDRESS_KEYS:
            warnings.append(f"line {line.number}: {line.key} does not apply: {_why_not(line)}")
    _add_address(lines, settings, origins)
    if "aclEnable" in lines and _convert_value(lines["aclEnable"], _boolean):
        settings["acl_file"] = str(directory / "plain_acl.yml")
    if (preferred_leader := settings.pop("priority", None)) is not None:
        settings["priority"] = int(preferred_leader == settings.get("node_id"))
    if "disk_expire_ratio" in settings:
        # Adjust related settings to keep their order; RocketMQ does not have them in this file.
        ratio = settings["disk_expire_ratio"]
        settings["disk_warn_ratio"] = min(0.75, ratio)
        settings["disk_full_ratio"] = max(0.9, ratio)
    return ConvertedConf(settings, warnings, origins)


def _parse(text: str) -> dict[str, _ConfLine]:
    lines: dict[str, _ConfLine] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.strip()
        if not content or content[0] in "#!":
            continue
        key, equals, value = (part.strip() for part in content.partition("="))
        if not equals or not key:
            raise ConfInvalid(f"line {number}: {content[:60]!r} is not KEY=VALUE")
        if key in lines:
            raise ConfInvalid(f"line {number}: {key} is given twice, first in line {lines[key].number}")
        lines[key] = _ConfLine(number, key, value)
    return lines


def _convert_value(line: _ConfLine, convert_value: Callable[[str], Any]) -> Any:
    try:
        return convert_value(line.value)
    except ValueError as error:
        raise ConfInvalid(f"line {line.number}: {line.key}: {error}") from error


def _why_not(line: _ConfLine) -> str:
    """The reason that a key does not apply. Raises ConfInvalid for a misspelled key."""
    if (reason := NOT_APPLICABLE.get(line.key)) is not None:
        return reason
    for pattern, reason in _FAMILIES:
        if pattern.fullmatch(line.key):
            return reason
    close = difflib.get_close_matches(line.key, [*TAKEN, *NOT_APPLICABLE, *_ADDRESS_KEYS], n=1, cutoff=0.85)
    if close:
        raise ConfInvalid(f"line {line.number}: unknown key {line.key}; did you mean {close[0]}?")
    return "unknown to this version of raftmq"


def _add_address(lines: Mapping[str, _ConfLine], settings: dict[str, Any], origins: dict[str, str]) -> None:
    """``listenPort`` and ``brokerIP1``: RocketMQ listens on all addresses, and advertises one."""
    if not lines.keys() & {"listenPort", "brokerIP1"}:
        return
    port = _convert_value(lines["listenPort"], _integer) if "listenPort" in lines else 10911
    if "brokerIP1" in lines:
        settings["listen"] = f"0.0.0.0:{port}"
        settings["advertise"] = f"{lines['brokerIP1'].value}:{port}"
        origins["advertise"] = f"line {lines['brokerIP1'].number}: brokerIP1"
    else:
        settings["listen"] = f"127.0.0.1:{port}"
    if "listenPort" in lines:
        origins["listen"] = f"line {lines['listenPort'].number}: listenPort"


def to_toml(conf: ConvertedConf) -> str:
    """Format the converted settings as our settings file, with the warnings as comments."""
    rows = [f"{name} = {_toml(value)}" for name, value in sorted(conf.settings.items())]
    return "\n".join([*(f"# {warning}" for warning in conf.warnings), *rows, ""])


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
