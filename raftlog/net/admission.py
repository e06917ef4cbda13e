"""Who may talk to this replica: a pure decision on what both sides of a new connection say of themselves.

Both sides have proved before that they have the secret of the group (`raftlog.net.authentication`). Who has it was set
up by an operator as a replica of this group, and says truly what it knows; this module keeps out what was set up
wrongly.

Membership changes while replicas are away, so two of them may know different configurations. A caller that this
replica does not know is let in, as a *guest*, when it shows a newer configuration that names both: it may be the new
leader that brings this replica up to date. That configuration is an operator's change, committed or under way. Nobody
whom this replica knows can be asked to vouch for it: all members that it knows may have been replaced while it was
away. So the secret is the proof, and what a guest shows is bounded: a number of a log entry that no log reaches is
refused, and so is a guest beyond `MEMBERS_MAX`. A node that has the secret but was not added shows no configuration
that names it, and is refused; so is a removed one, whose configuration is not newer.

Every directory has a random id, its *store*. A voter that comes back with another one has lost what it acknowledged
and voted for; counting on it could lose acknowledged entries. So each replica remembers which store each member has,
durably and before it hears the member, and sends away whoever comes with another one. Only a removal ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.consensus.confchange import MEMBERS_MAX
from raftlog.consensus.types import NodeId
from raftlog.net.frames import Hello, Welcome
from raftlog.net.versions import (
    HANDSHAKE_VERSION,
    NEWEST_VERSION,
    OLDEST_VERSION,
    SAYS_NOTHING,
    Software,
    spoken,
    why_apart,
)

Address = tuple[str, int]

CONF_INDEX_MAX: Final = 2**48
"""No log has so many entries: at a million entries a second it takes nine years."""
NAME_CHARS_MAX: Final = 64
"""Of a node id and of a store id."""
ADDRESS_CHARS_MAX: Final = 300
STORES_BYTES_MAX: Final = 800
"""Of all node and store ids that are remembered, with 4 bytes for each pair: they must fit the notes of a log."""


def parse_address(text: str) -> Address:
    """``HOST:PORT`` (an IPv6 host in brackets) as a pair; raises ValueError with the text it could not read."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text[:300]!r} is not HOST:PORT")
    try:
        can_be_looked_up = host.isprintable() and bool(host.encode("idna"))
    except UnicodeError:
        can_be_looked_up = False
    if not can_be_looked_up:
        raise ValueError(f"{text[:300]!r}: no host can have this name")
    return host.strip("[]"), int(port)


def format_address(address: Address) -> str:
    """What `parse_address` reads."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What this replica is; ``segment_bytes`` must be equal in a group, ``store_id`` names the directory.

    ``software`` is the version of the software, for people. It speaks replication versions from ``oldest`` to
    ``newest``, and understands format levels up to ``level_newest``.
    """

    cluster_id: str
    group: str
    node_id: NodeId
    segment_bytes: int
    store_id: str = ""
    software: str = ""
    oldest: int = OLDEST_VERSION
    newest: int = NEWEST_VERSION
    level_newest: int = 1


class Admission:
    """What this replica knows of its group, and whom it therefore talks to.

    Args:
        stores: which directory each member has, as it was remembered.
        on_learned: gets the whole table when it grew; must make it durable and then call `recorded`.

    Attributes:
        conf_index: the entry that set the configuration in force; 0 for the one that the group began with.
        addresses: its members and where they listen, ``HOST:PORT``; empty for a replica that has not joined.
        level: the format level of the group, as far as this replica has applied its log.
    """

    def __init__(
        self, identity: Identity, stores: Mapping[str, str], on_learned: Callable[[dict[str, str]], None]
    ) -> None:
        self.identity = identity
        self.conf_index = 0
        self.level = 1
        self.addresses: dict[str, str] = {}
        self._stores = dict(stores)
        self._unrecorded: dict[str, str] = {}
        self._on_learned = on_learned

    @property
    def stores(self) -> Mapping[str, str]:
        """Which directory each member has, as far as it is known here."""
        return self._stores

    def configure(self, conf_index: int, addresses: Mapping[str, str]) -> None:
        """Another configuration is in force."""
        self.conf_index = conf_index
        self.addresses = dict(addresses)

    def forget(self, nodes: Iterable[str]) -> None:
        """These were removed from the group: they may come back with whatever directory they have."""
        gone = [node for node in nodes if self._stores.pop(node, None) is not None]
        if gone:
            self._on_learned(dict(self._stores))

    def recorded(self, stores: Mapping[str, str]) -> None:
        """What `on_learned` was given is durable now."""
        for node, store in stores.items():
            if self._unrecorded.get(node) == store:
                del self._unrecorded[node]

    @property
    def software(self) -> Software:
        """What this replica says of its software."""
        mine = self.identity
        understood = max(self.level, mine.level_newest)
        return Software(mine.software, mine.oldest, mine.newest, self.level, understood)

    def hello(self, target: NodeId, lane: str, incarnation: str) -> Hello:
        """What to say first when calling ``target``."""
        mine = self.identity
        return Hello(
            cluster_id=mine.cluster_id,
            group=mine.group,
            source=mine.node_id,
            target=target,
            segment_bytes=mine.segment_bytes,
            lane=lane,
            incarnation=incarnation,
            store_id=mine.store_id,
            stores=self._stores,
            conf_index=self.conf_index,
            addresses=self.addresses,
            software=self.software,
        )

    def welcome(self, incarnation: str, refusal: str | None, caller: Software = SAYS_NOTHING) -> Welcome:
        """What to answer a caller, which has said this of its software."""
        mine = self.software
        version = spoken(mine, caller) or HANDSHAKE_VERSION
        return Welcome(incarnation, refusal, self.identity.store_id, self._stores, self.conf_index, mine, version)

    def why_not(self, hello: Hello) -> str | None:
        """Why this caller is refused, in words, or None. What it says of stores is learned if it is let in."""
        mine = self.identity
        if (refusal := _why_implausible(hello)) is not None:
            return refusal
        if hello.cluster_id != mine.cluster_id or hello.group != mine.group:
            return (
                f"this is group {mine.group!r} of cluster {mine.cluster_id}, not {hello.group!r} of {hello.cluster_id}"
            )
        if hello.target != mine.node_id:
            return f"this is node {mine.node_id!r}, not {hello.target!r}"
        if hello.source == mine.node_id:
            return f"{hello.source!r} is this node itself, two processes with the same id"
        if hello.segment_bytes != mine.segment_bytes:
            return (
                f"log files (segment_bytes) have {mine.segment_bytes} bytes here, "
                f"{hello.segment_bytes} at {hello.source!r}"
            )
        if (refusal := why_apart(self.software, hello.software, hello.source)) is not None:
            return refusal
        if (refusal := self._not_together(hello)) is not None:
            return refusal
        return self.why_not_store(hello.source, hello.store_id, hello.stores, hello.conf_index)

    def why_not_welcome(self, node: str, welcome: Welcome) -> str | None:
        """Why this replica does not go on with ``node``, which has answered its call; None if it does."""
        if (refusal := why_apart(self.software, welcome.software, node)) is not None:
            return refusal
        if welcome.version != spoken(self.software, welcome.software):
            return f"{node!r} chose replication version {welcome.version}, not the newest common version"
        return self.why_not_store(node, welcome.store_id, welcome.stores, welcome.conf_index)

    def why_not_store(self, node: str, store_id: str, stores: Mapping[str, str], conf_index: int) -> str | None:
        """Why ``node`` with this directory is not talked to, or None; ``stores`` and ``conf_index`` are its own view.

        Whoever knows a newer configuration is believed: the removal that explains another directory may be in it.
        """
        mine = self.identity
        if (refusal := _why_implausible_store(store_id, stores, conf_index)) is not None:
            return refusal
        known = self._stores.get(node)
        if known is not None and store_id and known != store_id and conf_index <= self.conf_index:
            return (
                f"{node} came back with another directory (store {store_id}, known is {known}): "
                f"remove it from the group and add it again"
            )
        ours = stores.get(mine.node_id)
        if ours is not None and mine.store_id and ours != mine.store_id and conf_index >= self.conf_index:
            return (
                f"{mine.node_id} came back with another directory (store {mine.store_id}, {node} knows {ours}): "
                f"remove it from the group and add it again"
            )
        return self._learn(node, store_id, stores if conf_index >= self.conf_index else {})

    def must_wait(self, node: str) -> bool:
        """Whether it is not on disk yet which directory ``node`` has; it is heard only afterwards."""
        return node in self._unrecorded

    def _learn(self, node: str, store_id: str, stores: Mapping[str, str]) -> str | None:
        """Remember what is new in this; returns why the caller is refused if there is no room for it."""
        learned = {
            other: its_store
            for other, its_store in stores.items()
            if other != self.identity.node_id and other in self.addresses and other not in self._stores
        }
        if store_id and self._stores.get(node) != store_id:
            learned[node] = store_id
        if not learned:
            return None
        table = self._stores | learned
        if _table_bytes(table) > STORES_BYTES_MAX:
            # Guests that never became members make room; members are remembered in any case.
            table = {other: its_store for other, its_store in table.items() if other in self.addresses or other == node}
        if _table_bytes(table) > STORES_BYTES_MAX:
            return f"the stores of {len(self._stores)} replicas are known, which is the maximum; no room for {node}"
        self._stores = table
        self._unrecorded |= {other: its_store for other, its_store in learned.items() if other in table}
        self._on_learned(dict(table))
        return None

    def _not_together(self, hello: Hello) -> str | None:
        """Why the caller is not in one group with this replica, or None."""
        members = self.addresses
        if not members:
            if {hello.source, self.identity.node_id} <= set(hello.addresses):
                return None
            return f"neither {hello.source!r} nor {self.identity.node_id!r} has joined the group"
        if self.conf_index == hello.conf_index == 0 and hello.addresses and set(hello.addresses) != set(members):
            return f"members are {sorted(members)} here, {sorted(hello.addresses)} at {hello.source!r}"
        if hello.source in members:
            return None
        if hello.conf_index > self.conf_index and {hello.source, self.identity.node_id} <= set(hello.addresses):
            return None
        return f"{hello.source!r} is not a member of the group as of configuration {self.conf_index}"


def _why_implausible(hello: Hello) -> str | None:
    """Why no replica of a group can say this, in words; None when it can."""
    names = (hello.source, hello.target, *hello.addresses)
    if any(not 0 < len(name) <= NAME_CHARS_MAX for name in names):
        return f"a node id has 1 to {NAME_CHARS_MAX} characters"
    if len(hello.addresses) > MEMBERS_MAX:
        return f"a group has at most {MEMBERS_MAX} members, {len(hello.addresses)} are named"
    if any(len(address) > ADDRESS_CHARS_MAX for address in hello.addresses.values()):
        return f"an address has at most {ADDRESS_CHARS_MAX} characters"
    if len(hello.incarnation) > NAME_CHARS_MAX:
        return f"an incarnation has at most {NAME_CHARS_MAX} characters"
    return None


def _why_implausible_store(store_id: str, stores: Mapping[str, str], conf_index: int) -> str | None:
    if not 0 <= conf_index <= CONF_INDEX_MAX:
        return f"entry {conf_index} cannot have set a configuration, a log has at most {CONF_INDEX_MAX} entries"
    if any(len(text) > NAME_CHARS_MAX for text in (store_id, *stores, *stores.values())):
        return f"node and store ids have at most {NAME_CHARS_MAX} characters"
    return None


def _table_bytes(stores: Mapping[str, str]) -> int:
    return sum(len(node.encode()) + len(store.encode()) + 4 for node, store in stores.items())
