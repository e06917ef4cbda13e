"""Writes and reads rows as Parquet objects in S3 storage, in tasks. Needs pyarrow and boto3, not Spark."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.segment.s3_storage import READ_BYTES, S3Store, open_s3

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_ROW_GROUP_ROWS: Final = 1_000_000
_PIECE_BYTES: Final = 4 * 1024 * 1024
OPEN_MAX: Final = 128
"""Files that a task keeps open: with more folders, the one is stored that has had no rows for longest."""


def write_objects(
    batches: Iterable[pa.RecordBatch],
    url: str,
    endpoint_url: str | None,
    name: str,
    unit: str | None,
    *,
    open_max: int = OPEN_MAX,
) -> Iterator[tuple[str, int]]:
    """Write rows below a URL; returns the name and size of each object.

    Args:
        name: of the objects, without their ending; unique among the writers below the URL.
        unit: the column by which they are divided into folders, and which they do not have; None for one folder.
        open_max: the number of files, at least 1, that are kept open.

    Raises StoreFailed; the objects that were written until then stay.
    """
    files: dict[str, _ParquetFile] = {}
    store: S3Store | None = None
    parts: Counter[str] = Counter()

    def next_stored() -> tuple[str, int]:
        nonlocal store
        folder = next(iter(files))
        target = f"{folder}/" if folder else ""
        target += f"{name}-{parts[folder]}.parquet" if parts[folder] else f"{name}.parquet"
        store = store or open_s3(url, endpoint_url)
        nbytes = files[folder].store(store, target)
        files.pop(folder).close()
        parts[folder] += 1
        return target, nbytes

    try:
        for batch in batches:
            for folder, part in split_folders(batch, unit):
                if folder not in files and len(files) >= open_max:
                    yield next_stored()
                file = files.pop(folder, None) or _ParquetFile(part.schema)
                files[folder] = file  # now the last one
                file.add(part)
        while files:
            yield next_stored()
    finally:
        if store is not None:
            store.close()
        for file in files.values():
            file.close()


def split_folders(batch: pa.RecordBatch, unit: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each folder that has any; folders are named as Spark and Hive name them."""
    if not batch.num_rows:
        return
    if unit is None:
        yield "", batch
        return
    column = batch.column(batch.schema.get_field_index(unit))
    rest = batch.drop_columns([unit])
    for value in pc.unique(column).to_pylist():
        mask = pc.is_null(column) if value is None else pc.equal(column, value)
        yield f"{unit}={_NULL if value is None else value}", rest.filter(mask)


def read_objects(
    names: Iterable[str], url: str, endpoint_url: str | None, schema: pa.Schema, unit: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of objects with these columns, null where an object lacks one. Raises NotStored, StoreFailed."""
    store = open_s3(url, endpoint_url)
    try:
        for name in names:
            with tempfile.TemporaryFile() as file:
                for piece in _pieces(store, name):
                    file.write(piece)
                file.seek(0)
                for batch in pq.ParquetFile(file).iter_batches():
                    yield _with_columns(batch, name, schema, unit)
    finally:
        store.close()


def _pieces(store: S3Store, name: str) -> Iterator[bytes]:
    at = 0
    while piece := store.read_range(name, READ_BYTES, at):
        yield piece
        if len(piece) < READ_BYTES:
            return
        at += len(piece)


def _with_columns(batch: pa.RecordBatch, name: str, schema: pa.Schema, unit: str | None) -> pa.RecordBatch:
    folder = name.rpartition("/")[0]
    columns: list[pa.Array] = []
    for field in schema:
        if field.name == unit:
            value = folder.partition("=")[2]
            columns.append(pa.array([None if value == _NULL else value] * batch.num_rows, field.type))
        elif (at := batch.schema.get_field_index(field.name)) < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(at).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _ParquetFile:
    """One Parquet file in a temporary file, since its size is not known before its end."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._writer = pq.ParquetWriter(self._file, schema, compression="snappy")
        self._batches: list[pa.RecordBatch] = []
        self._nbytes = self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Small batches become one row group."""
        self._batches.append(batch)
        self._nbytes += batch.nbytes
        self._rows += batch.num_rows
        if self._nbytes >= _ROW_GROUP_BYTES or self._rows >= _ROW_GROUP_ROWS:
            self._write()

    def store(self, store: S3Store, name: str) -> int:
        """Store the whole file; returns its size."""
        self._write()
        self._writer.close()
        nbytes = self._file.tell()
        self._file.seek(0)
        store.write(name, iter(lambda: self._file.read(_PIECE_BYTES), b""))
        return nbytes

    def close(self) -> None:
        """Close the file of the object."""
        self._file.close()

    def _write(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=self._rows)
            self._batches = []
            self._nbytes = self._rows = 0
