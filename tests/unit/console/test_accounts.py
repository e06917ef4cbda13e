"""Users and policies of several broker groups, as one list."""

from __future__ import annotations

from mq.console.views.accounts import PolicyRow, policy_rows, user_rows
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo


def user(name: str, kind: str = NORMAL, status: str = ENABLED) -> UserInfo:
    return UserInfo(name, user_type=kind, user_status=status)


def test_a_user_that_a_broker_group_lacks_or_has_otherwise_is_marked() -> None:
    rows = user_rows(
        {
            "broker-b": [user("ann"), user("bob", status=DISABLED)],
            "broker-a": [user("ann"), user("bob"), user("eve", SUPER)],
        }
    )
    assert [(row.name, row.kind, row.enabled, row.brokers, row.state) for row in rows] == [
        ("ann", "ordinary", "yes", "broker-a, broker-b", ""),
        ("bob", "ordinary", "no or yes", "broker-a, broker-b", "bad"),
        ("eve", "administrator", "yes", "broker-a", "bad"),
    ]


def test_equal_policies_of_broker_groups_are_one_row() -> None:
    entry = PolicyEntryInfo("Topic:Orders", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow")
    acl = AclInfo("User:ann", [PolicyInfo("Custom", [entry])])
    default = AclInfo("User:ann", [PolicyInfo("Default", [PolicyEntryInfo("Topic:*", ["Sub"], None, "Deny")])])
    assert policy_rows({"broker-a": [acl, default], "broker-b": [acl]}) == [
        PolicyRow("ann", "Topic:*", "Sub", "Deny by default", "anywhere", "broker-a"),
        PolicyRow("ann", "Topic:Orders", "Pub, Sub", "Allow", "10.0.0.0/8", "broker-a, broker-b"),
    ]
