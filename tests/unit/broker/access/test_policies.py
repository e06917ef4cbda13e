"""What policies of users allow, and seals of their secrets: without sockets."""

from __future__ import annotations

import msgspec
import pytest

from mq.accounts import Permission
from mq.broker.access.policies import UserAccount, rules_of
from mq.broker.access.sealing import NONCE_BYTES, SealBroken, is_sealed_with, seal, unseal
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, TableCommand
from mq.broker.state.users import (
    POLICIES_PER_USER_MAX,
    USERS_MAX,
    CreateUser,
    DeletePolicies,
    DeleteUser,
    Policy,
    PutPolicies,
    UpdateUser,
    Users,
)
from mq.protocol.access.address_patterns import compile_pattern
from mq.protocol.access.signing import Signer

PUB, SUB = Permission.PUB, Permission.SUB
SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
NONCE = bytes(NONCE_BYTES)


def account(*policies: Policy, admin: bool = False) -> UserAccount:
    return UserAccount(
        access_key="u",
        signer=Signer("secret-key"),
        white_listed=compile_pattern(""),
        admin=admin,
        rules=rules_of(policies),
    )


def allow(resource: str, *actions: str, sources: tuple[str, ...] = (), custom: bool = True) -> Policy:
    return Policy(custom, resource, actions or ("All",), sources)


def deny(resource: str, *actions: str, custom: bool = True) -> Policy:
    return Policy(custom, resource, actions or ("All",), allow=False)


@pytest.mark.parametrize(
    ("policies", "topic", "wanted", "allowed"),
    [
        ((), "T", PUB, False),
        ((allow("Topic:T", "Pub"),), "T", PUB, True),
        ((allow("Topic:T", "Pub"),), "T", SUB, False),
        ((allow("Topic:T", "Pub"),), "TT", PUB, False),
        ((allow("Topic:T*", "Pub"),), "TT", PUB, True),
        ((allow("Topic:*", "Sub"),), "%RETRY%G", SUB, False),
        ((allow("Group:*", "Sub"),), "%RETRY%G", SUB, True),
        ((allow("Group:G", "Sub"),), "G", SUB, False),
        ((allow("*"),), "%RETRY%G", SUB, True),
        ((allow("Cluster:*"),), "T", PUB, False),
        ((allow("Topic:T", "Create", "Get", "List"),), "T", SUB, False),
        ((allow("Topic:*"), deny("Topic:T")), "T", PUB, False),
        ((allow("Topic:*"), deny("Topic:T", "Sub")), "T", PUB, True),
        ((deny("Topic:*"), allow("Topic:T")), "T", PUB, True),
        ((deny("Topic:Or*"), allow("Topic:Order*")), "Orders", PUB, True),
        ((allow("Topic:Or*"), deny("Topic:Order*")), "Orders", PUB, False),
        ((allow("*"), deny("Topic:*")), "T", PUB, False),
        ((deny("*", custom=False), allow("Topic:*")), "T", PUB, True),
        ((allow("Topic:T", custom=False), deny("*")), "T", PUB, False),
        ((allow("Topic:T", custom=False), deny("Topic:U")), "T", PUB, True),
    ],
)
def test_most_specific_policy_decides(
    policies: tuple[Policy, ...], topic: str, wanted: Permission, allowed: bool
) -> None:
    for order in (policies, policies[::-1]):
        user = account(*order)
        assert [user.may(topic, wanted, "10.0.0.1") for _ in range(2)] == [allowed, allowed]


def test_policy_may_be_for_some_addresses_only() -> None:
    user = account(allow("Topic:T", sources=("10.0.0.0/24", "192.168.0.1")))
    assert [user.may("T", PUB, address) for address in ("10.0.0.7", "192.168.0.1", "10.0.1.1")] == [True, True, False]


def test_administrator_needs_no_policy() -> None:
    assert account(deny("*"), admin=True).may("T", PUB, "10.0.0.1")


def test_many_questions_take_little_memory() -> None:
    user = account(allow("Topic:*"))
    for number in range(3000):
        assert user.may(f"T{number}", PUB, "10.0.0.1")
    assert len(user.decisions) <= 1000


# -- seals -------------------------------------------------------------------------------------------------------------


def test_only_the_group_secret_decrypts_user_secrets() -> None:
    sealed = seal(SECRET, "orders", "the secret key", NONCE)
    assert "secret" not in sealed
    assert unseal([OTHER, SECRET], "orders", sealed) == "the secret key"
    assert is_sealed_with(SECRET, sealed)
    assert not is_sealed_with(OTHER, sealed)
    changed = sealed[:-6] + ("AAAA" if sealed[-6:-2] != "AAAA" else "BBBB") + sealed[-2:]
    for secrets, user, text in (
        ([OTHER], "orders", sealed),
        ([], "orders", sealed),
        ([SECRET], "others", sealed),
        ([SECRET], "orders", changed),
        ([SECRET], "orders", sealed[:12]),
        ([SECRET], "orders", "no base64 \N{SNOWMAN}"),
    ):
        with pytest.raises(SealBroken):
            unseal(secrets, user, text)


# -- the replicated table ----------------------------------------------------------------------------------------------


def applied(*commands: TableCommand) -> Users:
    users = Users()
    for command in commands:
        decoded = decode_command(encode_command(command))  # type: ignore[arg-type]
        assert isinstance(decoded, TableCommand)
        users.apply(decoded)
    return users


def test_user_commands_change_the_table() -> None:
    made = CreateUser(name="u", sealed="s1", admin=False)
    assert applied(made, CreateUser(name="u", sealed="s2", admin=True)).table["u"] == ("s1", False, True, ())
    assert applied(made, UpdateUser(name="u", enabled=False)).table["u"] == ("s1", False, False, ())
    assert applied(made, UpdateUser(name="u", sealed="s2", instead_of="s1")).table["u"].sealed == "s2"
    assert applied(made, UpdateUser(name="u", sealed="s2", instead_of="s0")).table["u"].sealed == "s1"
    assert applied(UpdateUser(name="u", enabled=False)).table == {}
    assert applied(made, DeleteUser(name="u"), DeleteUser(name="u")).table == {}
    first, second, default = allow("Topic:T"), deny("Topic:T"), allow("Topic:T", custom=False)
    put = PutPolicies(name="u", policies=[first, allow("Topic:A"), default])
    assert applied(made, put).table["u"].policies == (default, allow("Topic:A"), first)
    replaced = applied(made, put, PutPolicies(name="u", policies=[second]))
    assert replaced.table["u"].policies == (default, allow("Topic:A"), second)
    for command, left in (
        (DeletePolicies(name="u"), ()),
        (DeletePolicies(name="u", custom=True), (default,)),
        (DeletePolicies(name="u", custom=True, resource="Topic:T"), (default, allow("Topic:A"))),
        (DeletePolicies(name="u", resource="Topic:T"), (allow("Topic:A"),)),
    ):
        assert applied(made, put, command).table["u"].policies == left


def test_table_is_bounded() -> None:
    users = applied(*(CreateUser(name=f"u{number}", sealed="s", admin=False) for number in range(USERS_MAX + 1)))
    assert len(users.table) == USERS_MAX
    for at in range(0, POLICIES_PER_USER_MAX + 100, 100):
        users.apply(PutPolicies(name="u0", policies=[allow(f"Topic:T{number}") for number in range(at, at + 100)]))
    assert len(users.table["u0"].policies) == POLICIES_PER_USER_MAX


def test_equal_users_have_equal_snapshots() -> None:
    commands = [
        CreateUser(name="b", sealed="s", admin=True),
        CreateUser(name="a", sealed="s", admin=False),
        PutPolicies(
            name="a", policies=[allow("Topic:T", "Pub", "Sub", sources=("10.0.0.1",)), deny("*", custom=False)]
        ),
    ]
    states = []
    for order in (commands, [commands[1], commands[2], commands[0]]):
        metadata = Metadata()
        for command in order:
            metadata.apply(command)  # type: ignore[arg-type]
        states.append(metadata.snapshot())
    assert states[0] == states[1]
    restored = Metadata()
    restored.restore(states[0])
    assert restored.users.table == applied(*commands).table
    assert restored.snapshot() == states[0]
    assert b"users" not in Metadata().snapshot(), "a release that knows no users reads it"


@pytest.mark.parametrize(
    "command",
    [
        *(
            CreateUser(name=name, sealed="s", admin=False)
            for name in ("", "x" * 65, "../x", "a b", "a\n", "a\x1b", "ü")
        ),
        CreateUser(name="u", sealed="", admin=False),
        CreateUser(name="u", sealed="s" * 2000, admin=False),
        PutPolicies(name="u", policies=[]),
        *(
            PutPolicies(name="u", policies=[allow(resource)])
            for resource in (
                "",
                "T",
                "Topic:",
                "Topic:a*b",
                "Topic:**",
                "Tpic:x",
                "Topic:../x",
                "Topic:a\nb",
                "topic:x",
            )
        ),
        PutPolicies(name="u", policies=[Policy(True, "*", ())]),
        PutPolicies(name="u", policies=[allow("*", "Pub", "Any")]),
        PutPolicies(name="u", policies=[allow("*", sources=("10.0.0.1",) * 17)]),
        PutPolicies(name="u", policies=[allow("*", sources=("x" * 65,))]),
        PutPolicies(name="u", policies=[allow(f"Topic:{'x' * 190}{number}") for number in range(100)]),
        DeletePolicies(name="u", resource="T"),
    ],
    ids=lambda command: str(msgspec.to_builtins(command))[:60],
)
def test_meaningless_user_commands_are_not_encoded(command: TableCommand) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(command)  # type: ignore[arg-type]
