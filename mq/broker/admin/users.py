"""Requests of RocketMQ's ``mqadmin`` for users and their policies (codes 3001 to 3010), and for the accounts in the
``acl_file`` (9028).

Users supplement the accounts of `BrokerSettings.acl_file` and apply only if that is set: without it the broker does not
authenticate clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hmac import compare_digest
from typing import Any, Final

from mq.broker.access.policies import rules_of
from mq.broker.access.sealing import NONCE_BYTES, SealBroken, is_sealed_with, seal, unseal
from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import Command, encode_command
from mq.broker.state.format_level import LEVEL_OF_USERS
from mq.broker.state.users import (
    ACTIONS,
    POLICIES_MAX,
    POLICIES_PER_USER_MAX,
    USERS_MAX,
    DeletePolicies,
    DeleteUser,
    Policy,
    PutPolicies,
    UpdateUser,
    User,
    is_match,
)
from mq.broker.state.users import CreateUser as CreateUserCommand
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.access.signing import KEY_LENGTH_MIN
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.accounts import AccountList, ListAccounts
from mq.protocol.requests.users import (
    DISABLED,
    ENABLED,
    NORMAL,
    SUBJECT_PREFIX,
    SUPER,
    USER_STATES,
    USER_TYPES,
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    GetAcl,
    GetUser,
    ListAcls,
    ListUsers,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateAcl,
    UserInfo,
    encode_all,
)
from mq.protocol.requests.users import DeleteUser as DeleteUserRequest
from mq.protocol.requests.users import UpdateUser as UpdateUserRequest

SECRET_LENGTH_MAX: Final = 128
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"


class UserAdministration(Service):
    """Changes and shows users and their policies, and shows the accounts of the ``acl_file``."""

    def __init__(self, context: BrokerContext) -> None:
        self._reseal_seconds = context.limits.upkeep.reseal_seconds
        self._users = context.metadata.users
        self._level = context.metadata.format_level
        self._appender = context.appender
        self._read = context.reads.read
        self._access = context.environment.access
        self._secrets = context.environment.secrets
        self._random_bytes = context.environment.random_bytes
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        yield Route(CreateUser, self.handle_create, leader_only=True)
        yield Route(UpdateUserRequest, self.handle_update, leader_only=True)
        yield Route(DeleteUserRequest, self.handle_delete, leader_only=True)
        yield Route(GetUser, self.handle_get)
        yield Route(ListUsers, self.handle_list)
        yield Route(CreateAcl, self.handle_put_policies, leader_only=True)
        yield Route(UpdateAcl, self.handle_put_policies, leader_only=True)
        yield Route(DeleteAcl, self.handle_delete_policies, leader_only=True)
        yield Route(GetAcl, self.handle_get_policies)
        yield Route(ListAcls, self.handle_list_policies)
        yield Route(ListAccounts, self.handle_accounts)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._reseal_seconds, self.reseal)

    def handle_accounts(self, call: Call[ListAccounts]) -> bytes:
        """Request code 9028: list the accounts in this replica's file. Each replica has another file."""
        accounts = AccountList(has_file=False) if self._access is None else self._access.account_list
        return call.response(body=accounts.encode())

    # -- users -------------------------------------------------------------------------------------------------------

    def handle_create(self, call: Call[CreateUser]) -> bytes | None:
        """Request code 3001: create a user. Succeeds for an identical user: ``mqadmin createUser -c`` sends the request
        to each replica of the group.
        """
        name, request = self._requested_user(call)
        if request.password is None:
            raise _invalid(f"user {name} needs a password")
        if (user := self._users.table.get(name)) is not None:
            if self._matches(name, user, request):
                return call.response()
            raise _invalid(f"user {name} already exists")
        if not self._users.has_room(name):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the group has its maximum of {USERS_MAX} users")
        command = CreateUserCommand(
            name=name,
            sealed=self._seal(name, request.password),
            admin=request.user_type == SUPER,
            enabled=request.user_status != DISABLED,
        )

        def check() -> None:
            user = self._users.table.get(name)
            if user is None or user.sealed != command.sealed:
                raise _invalid(f"user {name} already exists, or the maximum number of users is reached")

        self._change(call, command, name, "created", check)
        return None

    def handle_update(self, call: Call[UpdateUserRequest]) -> None:
        """Request code 3002: change a user."""
        name, changes = self._requested_user(call)
        self._get_user(name)
        command = UpdateUser(
            name=name,
            sealed=None if changes.password is None else self._seal(name, changes.password),
            admin=None if changes.user_type is None else changes.user_type == SUPER,
            enabled=None if changes.user_status is None else changes.user_status == ENABLED,
        )
        self._change(call, command, name, "updated", lambda: self._get_user(name))

    def handle_delete(self, call: Call[DeleteUserRequest]) -> None:
        """Request code 3003: delete a user. Succeeds if there is no such user."""
        name = call.request.ext.name
        self._check_may_change(name)
        self._change(call, DeleteUser(name=name), name, "deleted")

    def handle_get(self, call: Call[GetUser]) -> None:
        """Request code 3004: return a user; an empty body if there is none, as RocketMQ brokers do."""
        name = call.request.ext.name

        def respond() -> bytes:
            user = self._users.table.get(name)
            return call.response(body=b"" if user is None else _user_info(name, user).encode())

        when_current(self._read, call, respond)

    def handle_list(self, call: Call[ListUsers]) -> None:
        """Request code 3005: list the users."""
        part = call.request.ext.name_part

        def respond() -> bytes:
            users = [_user_info(name, user) for name, user in sorted(self._users.table.items()) if part in name]
            return call.response(body=encode_all(users))

        when_current(self._read, call, respond)

    def reseal(self) -> None:
        """Encrypt with the new group secret the user secrets that an old one has sealed. A timer calls this."""
        if not self._appender.is_open:
            return
        secrets = self._secrets()
        for name, user in self._users.table.items():
            if not is_sealed_with(secrets[0], user.sealed):
                try:
                    secret_key = unseal(secrets, name, user.sealed)
                except SealBroken:
                    continue  # reported when the key is used
                text = self._seal(name, secret_key)
                self._appender.add_command(encode_command(UpdateUser(name=name, sealed=text, instead_of=user.sealed)))

    # -- policies ----------------------------------------------------------------------------------------------------

    def handle_put_policies(self, call: Call[CreateAcl | UpdateAcl]) -> None:
        """Request codes 3006 and 3007: add or replace policies of a user."""
        name = _user_of(call.request.ext.subject)
        self._check_may_change(name)
        self._get_user(name)
        acl = decode_body(AclInfo.decode, call.body)
        policies = [_policy(info.policy_type, entry) for info in acl.policies for entry in info.entries]
        try:
            rules_of(policies)
        except ValueError as error:
            raise _invalid(str(error)) from error

        def check() -> None:
            self._get_user(name)
            if self._users.with_policies(name, policies) is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"a user has {POLICIES_PER_USER_MAX} policies at most, and all users have {POLICIES_MAX}",
                )

        check()
        self._change(call, PutPolicies(name=name, policies=policies), name, "policies put", check)

    def handle_delete_policies(self, call: Call[DeleteAcl]) -> bytes | None:
        """Request code 3008: delete policies. Succeeds if there are no such policies, as `handle_create` does."""
        ext = call.request.ext
        name = _user_of(ext.subject)
        self._check_may_change(name)
        resource = _canonical(ext.resource)
        custom = _is_custom(ext.policy_type) if ext.policy_type or resource else None
        if not any(is_match(policy, custom, resource) for policy in self._get_user(name).policies):
            return call.response()
        self._change(call, DeletePolicies(name=name, custom=custom, resource=resource), name, "policies deleted")
        return None

    def handle_get_policies(self, call: Call[GetAcl]) -> None:
        """Request code 3009: return the policies of a user."""
        name = _user_of(call.request.ext.subject)

        def respond() -> bytes:
            policies = self._get_user(name).policies
            return call.response(body=_acl(name, policies).encode() if policies else b"")

        when_current(self._read, call, respond)

    def handle_list_policies(self, call: Call[ListAcls]) -> None:
        """Request code 3010: list the policies of all users."""
        ext = call.request.ext

        def respond() -> bytes:
            acls: list[AclInfo] = []
            for name, user in sorted(self._users.table.items()):
                policies = [policy for policy in user.policies if ext.resource_filter in policy.resource]
                if policies and ext.subject_filter in f"{SUBJECT_PREFIX}{name}":
                    acls.append(_acl(name, policies))
            return call.response(body=encode_all(acls))

        when_current(self._read, call, respond)

    # -- shared helpers ------------------------------------------------------------------------------------------------

    def _change(
        self,
        call: Call[Any],
        command: Command,
        name: str,
        change: str,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        body = encode(command)
        call.drop_body()  # the body may contain a password

        assert not call.body, f"a request about user {name} keeps its body of {len(call.body)} bytes"

        def check_and_log() -> None:
            check()
            self._log.info("user_changed", user=name, change=change)

        replicate(self._appender, [body], call, what="a user", check=check_and_log)

    def _check_may_change(self, name: str) -> None:
        if self._access is None:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "this broker does not authenticate clients (see acl_file), so users would have no effect",
            )
        if self._level.level < LEVEL_OF_USERS:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the group is at format level {self._level.level}, users need {LEVEL_OF_USERS}: not all members are "
                "connected and run a release that supports users",
            )
        if self._access.is_in_file(name):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the account {name} is in the acl_file of this broker: change it there"
            )

    def _get_user(self, name: str) -> User:
        user = self._users.table.get(name)
        if user is None:
            raise RequestRefused(ResponseCode.USER_NOT_EXIST, f"there is no user {name[:64]!r}")
        return user

    def _requested_user(self, call: Call[CreateUser] | Call[UpdateUserRequest]) -> tuple[str, UserInfo]:
        name = call.request.ext.name
        self._check_may_change(name)
        info = decode_body(UserInfo.decode, call.body)
        if info.password == "":
            info.password = None
        if info.password is not None and not KEY_LENGTH_MIN <= len(info.password) <= SECRET_LENGTH_MAX:
            raise _invalid(f"a password has {KEY_LENGTH_MIN} to {SECRET_LENGTH_MAX} characters")
        info.user_type = _one_of("a user type", info.user_type, USER_TYPES)
        info.user_status = _one_of("a user status", info.user_status, USER_STATES)
        return name, info

    def _matches(self, name: str, user: User, request: UserInfo) -> bool:
        """Return whether an existing user equals the requested one. Only the leader is asked: it can open seals."""
        if (user.admin, user.enabled) != (request.user_type == SUPER, request.user_status != DISABLED):
            return False
        try:
            secret_key = unseal(self._secrets(), name, user.sealed)
        except SealBroken:
            return False
        return compare_digest(secret_key.encode(), str(request.password).encode())

    def _seal(self, name: str, secret_key: str) -> str:
        secret = self._secrets()[0]
        text = seal(secret, name, secret_key, self._random_bytes(NONCE_BYTES))
        assert is_sealed_with(secret, text), f"what was sealed for user {name} does not name the secret"
        assert unseal([secret], name, text) == secret_key, f"the seal of user {name} opens to another key"
        return text


def _invalid(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, remark)


def _one_of(what: str, text: str | None, words: Sequence[str]) -> str | None:
    """Return the word that equals ``text``, ignoring case; None if ``text`` is None. Raises RequestRefused."""
    if not text:
        return None
    for word in words:
        if word.lower() == text.lower():
            return word
    raise _invalid(f"{text[:40]!a} is not {what}; allowed: {' and '.join(words)}")


def _user_of(subject: str) -> str:
    if not subject.startswith(SUBJECT_PREFIX):
        raise _invalid(f"the subject {subject[:80]!a} is not {SUBJECT_PREFIX}NAME")
    return subject.removeprefix(SUBJECT_PREFIX)


def _is_custom(policy_type: str | None) -> bool:
    return _one_of("a policy type", policy_type, (CUSTOM, DEFAULT)) != DEFAULT


def _canonical(resource: str) -> str:
    """Return the resource with its type in canonical case: RocketMQ brokers accept any case."""
    kind, colon, name = resource.partition(":")
    return f"{kind.capitalize()}:{name}" if colon else resource


def _policy(policy_type: str | None, entry: PolicyEntryInfo) -> Policy:
    return Policy(
        custom=_is_custom(policy_type),
        resource=_canonical(entry.resource),
        actions=tuple(dict.fromkeys(str(_one_of("an action", action, ACTIONS)) for action in entry.actions)),
        sources=tuple(entry.source_ips or ()),
        allow=_one_of("a decision", entry.decision or "none", (ALLOW, DENY)) == ALLOW,
    )


def _user_info(name: str, user: User) -> UserInfo:
    return UserInfo(
        name=name,
        user_type=SUPER if user.admin else NORMAL,
        user_status=ENABLED if user.enabled else DISABLED,
    )


def _acl(name: str, policies: Sequence[Policy]) -> AclInfo:
    infos: list[PolicyInfo] = []
    for custom in (True, False):
        entries = [_entry(policy) for policy in policies if policy.custom is custom]
        if entries:
            infos.append(PolicyInfo(policy_type=CUSTOM if custom else DEFAULT, entries=entries))
    return AclInfo(subject=f"{SUBJECT_PREFIX}{name}", policies=infos)


def _entry(policy: Policy) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=policy.resource,
        actions=policy.actions,
        source_ips=policy.sources or None,
        decision=ALLOW if policy.allow else DENY,
    )
