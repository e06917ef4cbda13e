"""Decides which peers may connect, from what both sides of a new connection report. Pure.

Both sides have proved that they know the group's secret (`raftlog.net.authentication`). A node with the secret was set
up by an operator as a replica of this group, and reports truthfully; this module refuses misconfigured ones.

Membership changes while replicas are away, so two of them may know different configurations. An unknown caller is
admitted as a *guest* if it shows a newer configuration that contains both: it may be the new leader that brings this
replica up to date. That configuration is an operator's change, committed or in progress. No known replica can be asked
to confirm it: all members known here may have been replaced in the meantime. So the secret is the proof, and what a
guest shows is limited: an impossible entry index is refused, and so is a guest beyond `MEMBERS_MAX`. A node with the
secret that was never added shows no configuration that contains it, and is refused; so is a removed one, whose
configuration is not newer.

Every directory has a random id, its *store*. A voter that returns with another one has lost its acknowledged entries
and its vote; counting on it could lose acknowledged entries. So each replica records the store of each member, durably
and before it accepts its messages, and refuses a member with another one. Only a removal ends that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.consensus.confchange import MEMBERS_MAX
from raftlog.consensus.types import NodeId
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.net.frames import Hello, Welcome
from raftlog.net.versions import (
    HANDSHAKE_VERSION,
    NEWEST_VERSION,
    OLDEST_VERSION,
    UNKNOWN_SOFTWARE,
    Software,
    common_version,
    why_apart,
)

Address = tuple[str, int]

CONF_INDEX_MAX: Final = 2**48
"""More entries than any log has: at a million entries a second it takes nine years."""
NAME_CHARS_MAX: Final = 64
"""Maximum length of a node id and of a store id."""
ADDRESS_CHARS_MAX: Final = 300
STORES_BYTES_MAX: Final = 800
"""Total size of all recorded node and store ids, with 4 bytes per pair: they must fit the notes of a log."""


def parse_address(text: str) -> Address:
    """``HOST:PORT`` (an IPv6 host in brackets) as a pair; raises ValueError with the invalid text."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text[:300]!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text[:300]!r}: an IPv6 address needs brackets, as in [::1]:10911")
    try:
        can_be_looked_up = host.isprintable() and bool(host.encode("idna"))
    except UnicodeError:
        can_be_looked_up = False
    if not can_be_looked_up:
        raise ValueError(f"{text[:300]!r}: no host can have this name")
    return host.strip("[]"), int(port)


def format_address(address: Address) -> str:
    """The reverse of `parse_address`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a replica. ``segment_bytes`` must be equal in a group, ``store_id`` identifies the directory.

    ``software`` is the version of the software, for people. It supports replication versions from ``oldest`` to
    ``newest``, and format levels up to ``level_newest``.
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
    """Decides which peers this replica admits, by what it knows of its group.

    Args:
        stores: the recorded directory of each member.
        on_learned: called with the whole table when it grew; must make it durable and then call `on_record`.

    Attributes:
        conf_index: the entry that set the configuration in force; 0 for the group's initial one.
        addresses: its members and their ``HOST:PORT``; empty for a replica that has not joined.
        level: the format level of the group, as far as this replica has applied its log.
    """

    def __init__(
        self, identity: Identity, stores: Mapping[str, str], on_learned: Callable[[dict[str, str]], None]
    ) -> None:
        self.identity = identity
        self.conf_index = NO_INDEX
        self.level = 1
        self.addresses: dict[str, str] = {}
        self._stores = dict(stores)
        self._unrecorded_stores: dict[str, str] = {}
        self._on_learned = on_learned

    @property
    def stores(self) -> Mapping[str, str]:
        """Return the known directory of each member."""
        return self._stores

    def configure(self, conf_index: LogIndex, addresses: Mapping[str, str]) -> None:
        """Set the configuration in force."""
        self.conf_index = conf_index
        self.addresses = dict(addresses)

    def forget(self, nodes: Iterable[str]) -> None:
        """Remove the directories of removed members, who may return with any directory."""
        forgotten_nodes = [node for node in nodes if self._stores.pop(node, None) is not None]
        if forgotten_nodes:
            self._on_learned(dict(self._stores))

    def on_record(self, stores: Mapping[str, str]) -> None:
        """Record that the table passed to `on_learned` is durable."""
        for node, store in stores.items():
            if self._unrecorded_stores.get(node) == store:
                del self._unrecorded_stores[node]

    @property
    def software(self) -> Software:
        """Return this replica's software, as reported to peers."""
        mine = self.identity
        newest_level = max(self.level, mine.level_newest)
        return Software(mine.software, mine.oldest, mine.newest, self.level, newest_level)

    def hello(self, target: NodeId, lane: str, incarnation: str) -> Hello:
        """Return the first message of a call to ``target``."""
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

    def welcome(self, incarnation: str, refusal: str | None, caller: Software = UNKNOWN_SOFTWARE) -> Welcome:
        """Return the answer to a caller with this software."""
        mine = self.software
        version = common_version(mine, caller) or HANDSHAKE_VERSION
        return Welcome(incarnation, refusal, self.identity.store_id, self._stores, self.conf_index, mine, version)

    def why_not(self, hello: Hello) -> str | None:
        """The reason to refuse this caller, as text, or None to admit it; then its stores are recorded."""
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
        """Return the reason to reject the answer of ``node`` to a call; None to accept it."""
        if (refusal := why_apart(self.software, welcome.software, node)) is not None:
            return refusal
        if welcome.version != common_version(self.software, welcome.software):
            return f"{node!r} chose replication version {welcome.version}, not the newest common version"
        return self.why_not_store(node, welcome.store_id, welcome.stores, welcome.conf_index)

    def why_not_store(self, node: str, store_id: str, stores: Mapping[str, str], conf_index: LogIndex) -> str | None:
        """The reason to refuse ``node`` with this directory, or None; ``stores`` and ``conf_index`` are its own view.

        A peer with a newer configuration is trusted: that may contain the removal that explains another directory.
        """
        mine = self.identity
        if (refusal := _why_implausible_store(store_id, stores, conf_index)) is not None:
            return refusal
        previous = self._stores.get(node)
        if previous is not None and store_id and previous != store_id and conf_index <= self.conf_index:
            return (
                f"{node} came back with another directory (store {store_id}, known is {previous}): "
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
        """Whether the directory of ``node`` is not durably recorded yet; its messages wait until then."""
        return node in self._unrecorded_stores

    def _learn(self, node: str, store_id: str, stores: Mapping[str, str]) -> str | None:
        """Record what is new; returns why the caller is refused if there is no room."""
        new_stores = {
            other: its_store
            for other, its_store in stores.items()
            if other != self.identity.node_id and other in self.addresses and other not in self._stores
        }
        if store_id and self._stores.get(node) != store_id:
            new_stores[node] = store_id
        if not new_stores:
            return None
        table = self._stores | new_stores
        if _table_bytes(table) > STORES_BYTES_MAX:
            # Guests that never became members make room; members are always kept.
            table = {other: its_store for other, its_store in table.items() if other in self.addresses or other == node}
        if _table_bytes(table) > STORES_BYTES_MAX:
            return f"the stores of {len(self._stores)} replicas are known, which is the maximum; no room for {node}"
        self._stores = table
        self._unrecorded_stores |= {other: its_store for other, its_store in new_stores.items() if other in table}
        self._on_learned(dict(table))
        return None

    def _not_together(self, hello: Hello) -> str | None:
        """The reason that the caller and this replica are not in the same group, or None."""
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
    """The reason that no replica of a group can report this, as text; None if one can."""
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


def _why_implausible_store(store_id: str, stores: Mapping[str, str], conf_index: LogIndex) -> str | None:
    if not 0 <= conf_index <= CONF_INDEX_MAX:
        return f"entry {conf_index} cannot have set a configuration, a log has at most {CONF_INDEX_MAX} entries"
    if any(len(text) > NAME_CHARS_MAX for text in (store_id, *stores, *stores.values())):
        return f"node and store ids have at most {NAME_CHARS_MAX} characters"
    return None


def _table_bytes(stores: Mapping[str, str]) -> int:
    return sum(len(node.encode()) + len(store.encode()) + 4 for node, store in stores.items())
