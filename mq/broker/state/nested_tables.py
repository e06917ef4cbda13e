"""NestedTables of tables that can be captured in a moment, to be encoded later and in another thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

OuterT = TypeVar("OuterT", bound=Hashable)
InnerT = TypeVar("InnerT", bound=Hashable)
ValueT = TypeVar("ValueT")
KeyT = TypeVar("KeyT", bound=tuple[Any, ...])
RowT = TypeVar("RowT")


class NestedTables(dict[OuterT, dict[InnerT, ValueT]]):
    """Tables by key. Whoever changes one gets it from `to_change`, which copies what a capture may still be reading.

    ``own``: the tables of these keys, as far as they are there, may be changed as they are.
    """

    def __init__(self, tables: Mapping[OuterT, dict[InnerT, ValueT]] | None = None) -> None:
        super().__init__(tables or {})
        self.own: set[OuterT] = set()

    def capture(self) -> dict[OuterT, dict[InnerT, ValueT]]:
        """All tables as they are now; they stay so."""
        self.own = set()
        return self.copy()

    def to_change(self, key: OuterT) -> dict[InnerT, ValueT]:
        """The table of ``key``, made if there is none. Not to be kept: after the next capture it is another one's."""
        if key in self.own and key in self:
            return self[key]
        self.own.add(key)
        table = self[key] = dict(self[key]) if key in self else {}
        return table


def in_order(keys: Iterable[KeyT]) -> Iterator[KeyT]:
    """Keys, of which the first item is a name, in their order.

    Sorted in parts that share a name: while Python sorts, no other thread runs, and 200,000 keys take it 0.4 s.
    """
    parts: dict[str, list[KeyT]] = {}
    for key in keys:
        parts.setdefault(key[0], []).append(key)
    for name in sorted(parts):
        yield from sorted(parts[name])


class Rows(Sequence[RowT], Generic[KeyT, RowT]):
    """A row for each key, made when it is looked at: many rows at once would keep the garbage collector busy.

    Args:
        make: the row of a key.
    """

    def __init__(self, keys: Sequence[KeyT], make: Callable[[KeyT], RowT]) -> None:
        self._keys = keys
        self._make = make

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> RowT: ...
    @overload
    def __getitem__(self, at: slice) -> list[RowT]: ...
    def __getitem__(self, at: int | slice) -> RowT | list[RowT]:
        if isinstance(at, slice):
            return [self._make(key) for key in self._keys[at]]
        return self._make(self._keys[at])
