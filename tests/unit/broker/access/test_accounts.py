"""Accounts, their addresses and permissions, and what requests need."""

from __future__ import annotations

import pytest

from mq.accounts import Permission, parse_accounts
from mq.broker.access.needs import ROWS, Role
from mq.protocol.access.address_patterns import compile_pattern, is_loopback
from mq.protocol.access.plain_acl import AclFileInvalid
from mq.protocol.requests.filters import RegisterFilterClassExt, RegisterMessageFilterClass

FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.7

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB

- accessKey: rocketmq2
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def test_group_may_be_allowed_to_upload_filters() -> None:
    accounts = parse_accounts(
        "accounts: [{accessKey: billing, secretKey: 12345678, groupPerms: [g=SUB|FILTER, h=PUB|SUB]}]"
    )
    account = accounts.by_key["billing"]
    assert account.may("%RETRY%g", Permission.FILTER, "10.0.0.1")
    assert not account.may("%RETRY%h", Permission.FILTER, "10.0.0.1")
    upload = RegisterMessageFilterClass(ext=RegisterFilterClassExt(consumer_group="g", topic="T", class_name="x"))
    row = ROWS[RegisterMessageFilterClass]
    assert callable(row)
    needed = {("T", Permission.SUB), ("%RETRY%g", Permission.SUB), ("%RETRY%g", Permission.FILTER)}
    assert set(row(upload, b"")) == needed


def test_file_of_rocketmq_is_read_unchanged() -> None:
    accounts = parse_accounts(FILE)
    assert accounts.white_listed("10.10.103.200")
    assert accounts.white_listed("192.168.0.7")
    assert not accounts.white_listed("192.168.0.8")
    user, admin = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
    assert (user.admin, admin.admin) == (False, True)
    assert "12345678" not in repr(accounts), "secrets are never shown"
    assert not user.white_listed("192.168.1.7")
    assert admin.white_listed("192.168.1.7")
    allowed = {
        (topic, permission)
        for topic in ("topicA", "topicB", "topicC", "other", "%RETRY%groupA", "%RETRY%groupB", "%RETRY%other")
        for permission in (Permission.PUB, Permission.SUB)
        if user.may(topic, permission, "10.0.0.1")
    }
    assert allowed == {
        ("topicB", Permission.PUB),
        ("topicB", Permission.SUB),
        ("topicC", Permission.SUB),
        ("%RETRY%groupB", Permission.PUB),
        ("%RETRY%groupB", Permission.SUB),
        ("%RETRY%other", Permission.SUB),
    }
    assert admin.may("anything", Permission.PUB, "10.0.0.1")


def test_empty_account_file_admits_no_client() -> None:
    accounts = parse_accounts("")
    assert accounts.by_key == {}
    assert not accounts.white_listed("127.0.0.1")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("accounts: [", "not YAML"),
        ("- a", "the file is list"),
        ("account: []", "the file has account"),
        ("accounts: 3", "accounts is int"),
        ("accounts: [3]", "account 1 is int"),
        ("accounts: [{accessKey: short, secretKey: 12345678}]", "accessKey has 5 characters"),
        ("accounts: [{accessKey: RocketMQ}]", "secretKey has 0 characters"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, admins: true}]", "account 1 has admins"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, admin: yess}]", "expected true or false"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, topicPerms: [T]}]", "expected NAME=PERMISSION"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, topicPerms: [T=PUBL]}]", "allowed: DENY, or PUB"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, defaultTopicPerm: DENY|PUB}]", "allowed: DENY"),
        ("accounts: [{accessKey: RocketMQ, secretKey: 12345678, whiteRemoteAddress: 10.0.0}]", "'10.0.0' is not"),
        ("globalWhiteRemoteAddresses: [10.0.0.300]", "'300' is not a range"),
        (
            "accounts: [{accessKey: RocketMQ, secretKey: 12345678}, {accessKey: RocketMQ, secretKey: 12345678}]",
            "account 2: the access key RocketMQ is given twice",
        ),
    ],
)
def test_parser_refuses_meaningless_account_entries(text: str, fault: str) -> None:
    with pytest.raises(AclFileInvalid, match=fault.replace("[", r"\[")) as caught:
        parse_accounts(text)
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [], ["10.0.0.1", "::1"]),
        ("*", ["10.0.0.1", "::1"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.10", "110.0.0.1", "::1"]),
        ("10.0.1.*", ["10.0.1.0", "10.0.1.255"], ["10.0.2.1", "10.0.10.1"]),
        ("10.0.*.*", ["10.0.1.0", "10.0.255.255"], ["10.1.0.0"]),
        ("10.0.1.10-20", ["10.0.1.10", "10.0.1.20"], ["10.0.1.9", "10.0.1.21", "10.0.1.100"]),
        ("10.0.1-2.*", ["10.0.1.7", "10.0.2.7"], ["10.0.3.7"]),
        ("10.0.1.{7, 9}", ["10.0.1.7", "10.0.1.9"], ["10.0.1.8", "10.0.1.79"]),
        ("10.0.0.1,10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("10.0.0.0/30", ["10.0.0.3"], ["10.0.0.4", "fe80::1"]),
        ("fe80::1", ["fe80::1", "fe80:0:0:0:0:0:0:1", "fe80::1%eth0"], ["fe80::2", "10.0.0.1"]),
        ("fe80:0:0:0:*", ["fe80::1"], ["fe81::1", "10.0.0.1"]),
    ],
)
def test_white_lists_match_address_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = compile_pattern(pattern)
    assert [address for address in (*yes, *no) if matches(address)] == yes


def test_loopback_addresses_are_recognized() -> None:
    assert [host for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "broker.example") if is_loopback(host)] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]


def test_only_self_authenticated_requests_need_no_account() -> None:
    assert {kind.__name__ for kind, row in ROWS.items() if row is Role.ANYBODY} == {
        "AnnounceReplica",
        "ReportArchived",
        "AuthenticateReplica",
        "Forward",
        "RelayReply",
    }


@pytest.mark.parametrize(
    "value", ["0b4c9c2f: 0c6f", "*0b4c9c2f0c6f", "!0b4c9c2f0c6f x", "'0b4c9c2f", "[0b4c9c2f", "0b4c9c2f: ["]
)
def test_account_file_errors_contain_no_secret_keys(value: str) -> None:
    """It goes to logs."""
    with pytest.raises(AclFileInvalid, match=r"not YAML: line [0-9]+, column") as refused:
        parse_accounts(f"accounts:\n- accessKey: operator\n  secretKey: {value}\n  admin: true\n")
    assert "0b4c9c2f" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__suppress_context__
