"""Damages any kind of file of a stopped broker: flips a bit, cuts the end off, or removes the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from jepsen.damage.log_damage import DamagedFile, closed_files, flip

KEPT = 0.3
"""The largest part of a truncated file that is left."""


def _log_indexes(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").glob("*.index"))


def _below(name: str) -> Callable[[Path], list[Path]]:
    def find(directory: Path) -> list[Path]:
        return sorted(path for path in (directory / name).rglob("*") if path.is_file() and path.stat().st_size)

    return find


def _find_named(*names: str) -> Callable[[Path], list[Path]]:
    def find(directory: Path) -> list[Path]:
        return [path for name in names if (path := directory / name).is_file() and path.stat().st_size]

    return find


FILES: Mapping[str, Callable[[Path], list[Path]]] = {
    "closed log file": lambda directory: closed_files(directory / "commitlog"),
    "sidecar of a log file": _log_indexes,
    "checkpoint": _find_named("checkpoint"),
    "both checkpoints": _find_named("checkpoint", "checkpoint.previous"),
    "snapshot": lambda directory: sorted(path for path in directory.rglob("snapshot*") if path.is_file()),
    "consume queue": _below("queues"),
    "key index": _below("index"),
}
"""Functions that list the files of each kind in a broker's directory."""

MANNERS = ("a bit flips", "the end is missing", "it is missing")


def break_files(rng: Random, directory: Path, kind: str, manner: str, *, files_max: int = 1) -> list[DamagedFile]:
    """Damage some files of a kind, or both checkpoints. Returns the damaged files: none if no such file exists.

    A closed log file must come back byte by byte; files derived from the log may be written in another way.
    """
    paths = FILES[kind](directory)
    if paths and not kind.startswith("both"):
        paths = rng.sample(paths, min(files_max, len(paths)))
    return [_break(rng, path, manner, returns=kind == "closed log file") for path in paths]


def _break(rng: Random, path: Path, manner: str, *, returns: bool) -> DamagedFile:
    before = path.read_bytes()
    match manner:
        case "a bit flips":
            nbytes = len(before.rstrip(b"\0")) or len(before)
            flip(path, rng.randrange(nbytes), rng.randrange(8))
        case "the end is missing":
            with path.open("r+b") as file:
                file.truncate(rng.randrange(int(len(before) * KEPT) + 1))
        case "it is missing":
            path.unlink()
        case _:
            raise ValueError(f"there is no way to damage {path.name}: {manner!r}")
    return DamagedFile(path, before, returns=returns)


def describe_damage(files: list[DamagedFile]) -> str:
    """List the changed files and the bytes changed in each; empty if one of them has not changed."""
    texts = [f"{each.changed_bytes} of {len(each.before)} bytes of {each.path.name}" for each in files]
    return ", ".join(texts) if files and all(each.changed_bytes for each in files) else ""
