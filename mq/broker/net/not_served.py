"""Texts for RocketMQ requests that do not apply to a Raft group: the reason, and the alternative. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final


def _codes(reason: str, codes: Iterable[int]) -> Mapping[int, str]:
    return dict.fromkeys(codes, reason)


_REASONS: Final[Mapping[int, str]] = {
    # UPDATE_AND_CREATE_ACL_CONFIG, DELETE_ACL_CONFIG, GET_BROKER_CLUSTER_ACL_INFO, UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    **_codes("change accounts in the acl_file of each replica, or make users with `raftmq user`", range(50, 54)),
    # CHECK_ROCKSDB_CQ_WRITE_PROGRESS, EXPORT_ROCKSDB_CONFIG_TO_JSON
    **_codes("nothing is kept in RocksDB; `raftmq export` writes topics, groups and offsets", (354, 355)),
    # UPDATE_AND_CREATE_STATIC_TOPIC
    **_codes("there are no static topics: a queue stays in its broker group", (513,)),
    # ADD_BROKER, REMOVE_BROKER
    **_codes("there are no broker containers: start each replica with `raftmq broker`", (902, 903)),
    # NOTIFY_MIN_BROKER_ID_CHANGE, EXCHANGE_BROKER_HA_INFO, GET_BROKER_HA_STATUS, RESET_MASTER_FLUSH_OFFSET,
    # GET_BROKER_EPOCH_CACHE
    **_codes(
        "replicas of a Raft group are neither masters nor slaves; `raftmq status` shows them",
        (905, 906, 907, 908, 1007),
    ),
    # CONTROLLER_ELECT_MASTER
    **_codes("replicas elect their leader without a controller; `raftmq group transfer` chooses one", (1002,)),
    # all other requests of controllers
    **_codes(
        "replicas elect their leader without a controller; see `raftmq status` and `raftmq group`",
        (1001, 1003, 1004, 1005, 1006, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 1015, 1016),
    ),
    # UPDATE_COLD_DATA_FLOW_CTR_CONFIG, REMOVE_COLD_DATA_FLOW_CTR_CONFIG, GET_COLD_DATA_FLOW_CTR_INFO
    **_codes("groups that read old messages are not throttled: followers serve them", (2001, 2002, 2003)),
    # SET_COMMITLOG_READ_MODE
    **_codes("log files are not mapped into memory", (2004,)),
    # POP_ROLLBACK
    **_codes("open pops are kept in the replicated log, not in files of this broker", (200056,)),
}


def why_not_served(code: int) -> str:
    """Return the reason why this broker does not support a request code, as text for the client."""
    reason = _REASONS.get(code)
    return f" request type {code} not supported" + (f": {reason}" if reason is not None else "")
