"""The key-value configuration of a name server: namespaces of texts, set by operators and read by brokers and clients.

It is kept in memory, and written to a file as a whole; see `mq.namesrv.kv_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.namesrv.route_table import TableFull
from mq.protocol.errors import ProtocolError
from mq.protocol.requests.namesrv_config import KvConfigTable

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
NAME_BYTES_MAX: Final = 255
VALUE_BYTES_MAX: Final = 64 * 1024


class KvInvalid(ProtocolError):
    """A namespace, key or value is empty or too long. Nothing was changed."""


class KvConfig:
    """Texts by namespace and key, which operators set, and brokers and clients read.

    Args:
        entries_max: total keys of all namespaces.
        bytes_max: total size of all namespaces, keys and values.

    Attributes:
        version: the number of changes so far.
    """

    def __init__(self, *, entries_max: int = 10_000, bytes_max: int = 8 * 1024 * 1024) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._namespaces: dict[str, dict[str, str]] = {}
        self._entries = 0
        self._bytes = 0
        self.version = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. Raises KvInvalid, TableFull."""
        for what, text in (("namespace", namespace), ("key", key)):
            if not text.strip() or len(text.encode()) > NAME_BYTES_MAX:
                raise KvInvalid(f"the {what} has {len(text.encode())} bytes; allowed: 1 to {NAME_BYTES_MAX}")
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise KvInvalid(f"the value has {len(value.encode())} bytes; maximum: {VALUE_BYTES_MAX}")
        current = self.get(namespace, key)
        if current == value:
            return
        if current is None and self._entries >= self._entries_max:
            raise TableFull("key-value entries", self._entries_max)
        growth = _size(namespace, key, value) - (0 if current is None else _size(namespace, key, current))
        if self._bytes + growth > self._bytes_max:
            raise TableFull(f"bytes of key-value entries, of {self._bytes_max} allowed", self._bytes)
        self._namespaces.setdefault(namespace, {})[key] = value
        self._entries += current is None
        self._bytes += growth
        self.version += 1

    def get(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None without one."""
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if it exists."""
        entries = self._namespaces.get(namespace, {})
        value = entries.pop(key, None)
        if value is None:
            return
        self._entries -= 1
        self._bytes -= _size(namespace, key, value)
        if not entries:
            del self._namespaces[namespace]
        self.version += 1

    def of_namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace by key; None if it has none."""
        return self._namespaces.get(namespace)

    def encode(self) -> bytes:
        """Encode all values as JSON, in the layout of stock name servers."""
        return KvConfigTable(self._namespaces).encode()

    def restore(self, content: bytes) -> None:
        """Replace all values by those that `encode`, or a stock name server, has encoded. Raises BodyError."""
        namespaces = {name: entries for name, entries in KvConfigTable.decode(content).namespaces.items() if entries}
        self._namespaces = namespaces
        self._entries = sum(map(len, namespaces.values()))
        self._bytes = sum(_size(name, *entry) for name, entries in namespaces.items() for entry in entries.items())


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace.encode()) + len(key.encode()) + len(value.encode())
