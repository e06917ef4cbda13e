"""Users and policies of several broker groups, as one list."""

from __future__ import annotations

from mq.console.views.accounts import FileRow, PolicyRow, file_rows, file_words, policy_rows, quotas_by_name, user_rows
from mq.inspection.cluster_queries import OfReplicas
from mq.protocol.requests.accounts import AccountInfo, AccountList
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import NamedQuota, QuotaList
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo


def user(name: str, kind: str = NORMAL, status: str = ENABLED) -> UserInfo:
    return UserInfo(name, user_type=kind, user_status=status)


def test_user_missing_or_different_in_a_group_is_marked() -> None:
    rows = user_rows(
        {
            "broker-b": [user("ann"), user("bob", status=DISABLED)],
            "broker-a": [user("ann"), user("bob"), user("eve", SUPER)],
        },
        {},
        OfReplicas(),
    )
    assert [(row.name, row.kind, row.enabled, row.where, row.state) for row in rows.values()] == [
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


READER = AccountInfo(access_key="reader", default_group=["SUB"], topics={"Orders": ["SUB"]})


def test_account_that_a_replica_lacks_or_has_otherwise_is_marked() -> None:
    other = AccountInfo(access_key="reader", default_group=["SUB"], topics={"Orders": ["PUB", "SUB"]})
    root = AccountInfo(access_key="root", admin=True)
    seen = OfReplicas({"a n0": AccountList(has_file=True, accounts=[READER, root])})
    seen.answers["a n1"] = AccountList(has_file=True, accounts=[other, root])
    rows = user_rows({}, {"root": "connections 3"}, seen)
    assert [(each.name, each.kind, each.origin, each.where, each.quota, each.state) for each in rows.values()] == [
        ("reader", "ordinary", "acl_file", "all replicas", "-", "bad"),
        ("root", "administrator", "acl_file", "all replicas", "connections 3", ""),
    ]
    assert file_rows("reader", seen) == [
        FileRow("Topic:Orders", "SUB", "a n0"),
        FileRow("other topics", "nothing", "all"),
        FileRow("other groups", "SUB", "all"),
        FileRow("Topic:Orders", "PUB, SUB", "a n1"),
    ]
    seen.answers["a n2"] = AccountList(has_file=True)
    assert [each.where for each in user_rows({}, {}, seen).values()] == ["a n0, a n1", "a n0, a n1"]


def test_accounts_page_explains_differing_acl_files() -> None:
    assert file_words(OfReplicas({"a n0": AccountList(has_file=True, accounts=[READER])})) == []
    seen = OfReplicas({"a n0": AccountList(has_file=False)}, ["a n1"], ["b n0"])
    seen.answers["a n2"] = AccountList(has_file=True, addresses=["10.*"])
    unknowing, silent, without, everybody = file_words(seen)
    assert "b n0" in unknowing
    assert "a n1 did not answer" in silent
    assert "no acl_file at a n0:" in without
    assert everybody == "From 10.* everything may be done without an account."


def test_quotas_that_differ_by_group_name_each_group() -> None:
    one, two = (QuotaList(users=[NamedQuota(user="ann", quota=Quota(connections=count))]) for count in (1, 2))
    assert quotas_by_name({"a": one, "b": one}) == {"ann": "connections 1"}
    assert quotas_by_name({"a": one, "b": two}) == {"ann": "a: connections 1, b: connections 2"}
    assert quotas_by_name({"a": one, "b": QuotaList(users=[])}) == {"ann": "a: connections 1, b: no limit"}
