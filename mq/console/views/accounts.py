"""Rows of the pages about users, accounts, policies and quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mq.inspection.cluster_queries import OfReplicas
from mq.inspection.formatting import some_of
from mq.protocol.requests.accounts import AccountInfo, AccountList
from mq.protocol.requests.quota_attributes import EVERYBODY, NO_QUOTA, Quota
from mq.protocol.requests.quotas import QuotaList
from mq.protocol.requests.users import DISABLED, SUBJECT_PREFIX, SUPER, AclInfo, UserInfo

SHOWN_OF_LIST = 3


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user, an account of a file, or a name that only has policies or a quota. ``state`` is "bad" if broker groups or
    replicas lack it or differ.

    ``origin`` is who defines it: "a command" or "acl_file"; ``where`` the broker groups, or replicas, that have it.
    """

    name: str
    kind: str
    enabled: str
    origin: str
    where: str
    quota: str
    state: str


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy: the actions on a resource that a user is allowed or denied."""

    user: str
    resource: str
    actions: str
    decision: str
    sources: str
    brokers: str


@dataclass(frozen=True, slots=True)
class FileRow:
    """The actions that a file allows an account. ``resource`` is written as in policies."""

    resource: str
    actions: str
    replicas: str


@dataclass(frozen=True, slots=True)
class ThrottledRow:
    """A user or topic that was throttled within the last minute."""

    kind: str
    name: str
    what: str
    counts: str
    last: str
    broker: str


def user_rows(
    users_by_broker: Mapping[str, Sequence[UserInfo]], quotas: Mapping[str, str], files: OfReplicas[AccountList]
) -> dict[str, UserRow]:
    """Return a row for each name with a user, an account or a quota. All broker groups should have the same users.

    An account of a file takes precedence over a user of the same name.
    """
    by_name: dict[str, dict[str, UserInfo]] = {}
    for broker, users in sorted(users_by_broker.items()):
        for user in users:
            by_name.setdefault(user.name, {})[broker] = user
    rows = {}
    for name, brokers in by_name.items():
        kinds = {"administrator" if each.user_type == SUPER else "ordinary" for each in brokers.values()}
        enabled_texts = {"no" if each.user_status == DISABLED else "yes" for each in brokers.values()}
        differs = len(brokers) < len(users_by_broker) or len(kinds) > 1 or len(enabled_texts) > 1
        words = " or ".join(sorted(kinds)), " or ".join(sorted(enabled_texts))
        where = ", ".join(brokers)
        rows[name] = UserRow(name, *words, "a command", where, quotas.get(name, "-"), _state(differs))
    for name, replicas in accounts_of(files).items():
        differs = len(replicas) < len(files.answers) or len({each.encoded for each in replicas.values()}) > 1
        kinds = {each.kind for each in replicas.values()}
        origin = "acl_file, not the user of this name" if name in rows else "acl_file"
        where = "all replicas" if len(replicas) == len(files.answers) else ", ".join(sorted(replicas))
        quota = quotas.get(name, "-")
        rows[name] = UserRow(name, " or ".join(sorted(kinds)), "yes", origin, where, quota, _state(differs))
    for name in quotas.keys() - rows.keys() - {EVERYBODY}:
        rows[name] = without_user(name, quotas[name])
    return rows


def without_user(name: str, quota: str = "-") -> UserRow:
    """Return the row of a name that has policies or a quota but is neither a user nor an account."""
    return UserRow(name, "no such user", "-", "-", "-", quota, _state(True))


@dataclass(frozen=True, slots=True)
class FileAccount:
    """An account as one replica has it. Accounts with equal ``encoded`` are equal except for their keys."""

    info: AccountInfo
    kind: str
    encoded: str


def accounts_of(files: OfReplicas[AccountList]) -> dict[str, dict[str, FileAccount]]:
    """Return the accounts of the files, by access key and replica."""
    accounts: dict[str, dict[str, FileAccount]] = {}
    for replica, file in sorted(files.answers.items()):
        for info in file.accounts:
            accounts.setdefault(info.access_key, {})[replica] = FileAccount(info, _kind_of(info), repr(info))
    return accounts


def _kind_of(info: AccountInfo) -> str:
    if info.admin:
        return "administrator"
    if info.proxy:
        return "a proxy, for its users"
    return "registers brokers" if info.broker else "ordinary"


def file_rows(name: str, files: OfReplicas[AccountList]) -> list[FileRow]:
    """List the actions that the replicas' files allow the account of this name, by resource."""
    replicas_of: dict[tuple[str, str], list[str]] = {}
    for replica, each in accounts_of(files).get(name, {}).items():
        for resource, actions in _rights(each.info):
            replicas_of.setdefault((resource, actions), []).append(replica)
    everywhere = len(files.answers)
    return [
        FileRow(resource, actions, "all" if len(replicas) == everywhere else ", ".join(replicas))
        for (resource, actions), replicas in replicas_of.items()
    ]


def _rights(info: AccountInfo) -> list[tuple[str, str]]:
    if info.admin:
        return [("everything", "all")]
    if info.proxy or info.broker:
        return [("nothing of its own", "-")]
    rows = [
        *((f"Topic:{name}", words) for name, words in sorted(info.topics.items())),
        *((f"Group:{name}", words) for name, words in sorted(info.groups.items())),
        ("other topics", info.default_topic),
        ("other groups", info.default_group),
    ]
    return [(resource, ", ".join(words) or "nothing") for resource, words in rows]


def addresses_of(name: str, files: OfReplicas[AccountList]) -> list[str]:
    """Return the address patterns from which this account needs no signature."""
    addresses = {each.info.addresses for each in accounts_of(files).get(name, {}).values()}
    return sorted(addresses - {""})


def file_words(files: OfReplicas[AccountList]) -> list[str]:
    """Return remarks on the files as a whole, as sentences."""
    words = []
    if files.incapable:
        these = some_of(sorted(files.incapable), SHOWN_OF_LIST)
        words.append(
            f"{these} cannot say what is in an acl_file: brokers of Apache RocketMQ, and of earlier releases, do not "
            "tell it."
        )
    if files.silent:
        words.append(f"{some_of(sorted(files.silent), SHOWN_OF_LIST)} did not answer: their acl_file is not shown.")
    if (without := sorted(replica for replica, file in files.answers.items() if not file.has_file)) != []:
        words.append(
            f"There is no acl_file at {some_of(without, SHOWN_OF_LIST)}: whoever reaches it may do everything there, "
            "and users, policies and quotas of users mean nothing."
        )
    if (addresses := sorted({each for file in files.answers.values() for each in file.addresses})) != []:
        words.append(f"From {some_of(addresses, SHOWN_OF_LIST)} everything may be done without an account.")
    return words


def policy_rows(policies: Mapping[str, Sequence[AclInfo]]) -> list[PolicyRow]:
    """Return the policies by user and resource, each with the broker groups that have it."""
    brokers_of: dict[tuple[str, str, str, str, str], list[str]] = {}
    for broker, acls in sorted(policies.items()):
        for acl in acls:
            for policy in acl.policies:
                for entry in policy.entries:
                    key = (
                        acl.subject.removeprefix(SUBJECT_PREFIX),
                        entry.resource,
                        ", ".join(entry.actions),
                        entry.decision + (" by default" if policy.policy_type == "Default" else ""),
                        ", ".join(entry.source_ips or ()) or "anywhere",
                    )
                    brokers_of.setdefault(key, []).append(broker)
    return [PolicyRow(*key, ", ".join(brokers)) for key, brokers in sorted(brokers_of.items())]


def quotas_by_name(quota_lists: Mapping[str, QuotaList]) -> dict[str, str]:
    """Describe the quota of each name. If broker groups have different quotas, the text names the groups."""
    by_name: dict[str, dict[str, Quota]] = {}
    for broker, quota_list in sorted(quota_lists.items()):
        for each in quota_list.users:
            by_name.setdefault(each.user, {})[broker] = each.quota
    return {name: _one_or_each(quotas, quota_lists) for name, quotas in by_name.items()}


def _one_or_each(quotas: Mapping[str, Quota], brokers: Iterable[str]) -> str:
    texts = {broker: str(quotas.get(broker, NO_QUOTA)) for broker in sorted(brokers)}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{broker}: {text}" for broker, text in texts.items())


def quota_of(name: str, quota_lists: Mapping[str, QuotaList]) -> Quota:
    """Return the quota of a name in the first broker group that has one."""
    rows = (each for _, quotas in sorted(quota_lists.items()) for each in quotas.users)
    return next((each.quota for each in rows if each.user == name), NO_QUOTA)


def connections_of(name: str, quota_lists: Mapping[str, QuotaList]) -> int:
    """Return how many connections a user with a quota has to the leaders."""
    return sum(each.connections for quotas in quota_lists.values() for each in quotas.users if each.user == name)


def throttled_rows(quota_lists: Mapping[str, QuotaList]) -> list[ThrottledRow]:
    """List the users that were throttled within the last minute, by broker group."""
    return [
        ThrottledRow(
            each.kind,
            each.name,
            each.direction,
            f"{each.delayed:,} delayed, {each.refused:,} refused",
            f"{each.seconds_ago:.0f} s ago",
            broker,
        )
        for broker, quotas in sorted(quota_lists.items())
        for each in quotas.throttled
    ]


def _state(differs: bool) -> str:
    return "bad" if differs else ""
