"""Torments of disks: bits that flip in files, ends that are damaged, and file systems that are full."""

from __future__ import annotations

from pathlib import Path

import trio

from jepsen.damage import BALLAST, fill, flip, forget_sidecars
from tests.process.torture_kinds import kind
from tests.process.torture_run import Torture
from tests.process.torture_wire import HEAL_SECONDS_MAX

SMALL_DISK_BYTES = 64 * 1024 * 1024


FILES_MIN = 6


def _closed(run: Torture, node: str) -> Path:
    """A closed file of a log; one of the newest, so that it stays for a while."""
    return run.rng.choice(run.group.segments(node)[-4:-1])


async def _has_files(run: Torture, node: str) -> None:
    """Until there is something to damage."""
    with trio.fail_after(HEAL_SECONDS_MAX):
        while len(run.group.segments(node)) < FILES_MIN:  # noqa: ASYNC110
            await trio.sleep(0.1)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # removed in its time


async def _repaired(run: Torture, node: str, path: Path, before: bytes) -> None:
    """Until the file is as it was, or was removed in its time."""
    with trio.move_on_after(HEAL_SECONDS_MAX):
        while (now := _content(path)) not in (before, None):
            run.group.check()
            await trio.sleep(0.05)
        run.done["repaired" if now else "removed before it was repaired"] += 1
        return
    run.broken(f"{node} has not repaired {path.name}")


@kind
async def flip_stopped(run: Torture) -> None:
    """A bit of a closed file flips while its node is stopped or was killed; the next start repairs it."""
    node = run.rng.choice(run.group.members)
    await _has_files(run, node)
    await (run.group.stop(node) if run.rng.random() < 0.5 else run.group.kill(node))
    path = _closed(run, node)
    before = path.read_bytes()
    flip(path, run.rng.randrange(len(before)), run.rng.randrange(8))
    forget_sidecars(run.group.commitlog(node))
    await run.group.start(node)
    await _repaired(run, node, path, before)
    await run.level(node)


@kind
async def flip_many(run: Torture) -> None:
    """Many bits of many files of one node, as of a disk that dies."""
    node = run.rng.choice(run.group.members)
    await _has_files(run, node)
    await run.group.kill(node)
    paths = run.group.segments(node)[-FILES_MIN:-1]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        for _ in range(run.rng.randrange(1, 20)):
            flip(path, run.rng.randrange(run.segment_bytes), run.rng.randrange(8))
    forget_sidecars(run.group.commitlog(node))
    await run.group.start(node)
    for path, content in zip(paths, before, strict=True):
        await _repaired(run, node, path, content)
    await run.level(node)


@kind
async def flip_running(run: Torture) -> None:
    """A bit of a closed file flips under a running node; it is found when a peer or a restart reads it."""
    node = run.rng.choice([await run.wait_leader(), await run.a_follower()])
    await _has_files(run, node)
    other = run.rng.choice([member for member in run.group.members if member != node])
    await run.group.kill(other)
    await run.flow(100)
    path = _closed(run, node)
    before = path.read_bytes()
    flip(path, run.rng.randrange(len(before)), run.rng.randrange(8))
    # Perhaps what it lacks comes from the damaged file; the damaged node must notice and restart.
    await run.group.start(other)
    await run.level(other)
    await run.group.stop(node)
    forget_sidecars(run.group.commitlog(node))
    await run.group.start(node)
    await _repaired(run, node, path, before)
    await run.level(node)


@kind
async def flip_tail(run: Torture) -> None:
    """The last bytes that a killed node wrote are damaged, or cut off."""
    node = run.rng.choice(run.group.members)
    await run.group.kill(node)
    path = run.group.segments(node)[-1]
    data = path.read_bytes().rstrip(b"\0")
    if not data:
        await run.group.start(node)
        return
    how = run.rng.choice(("flip", "zero", "truncate", "rubbish"))
    run.done[f"tail: {how}"] += 1
    if how == "flip":
        flip(path, len(data) - 1 - run.rng.randrange(min(200, len(data))), run.rng.randrange(8))
    else:
        keep = max(0, len(data) - run.rng.randrange(1, 5000))
        with path.open("r+b") as file:
            if how == "truncate":
                file.truncate(keep)
            else:
                file.seek(keep)
                file.write(run.rng.randbytes(len(data) - keep) if how == "rubbish" else bytes(len(data) - keep))
    await run.group.start(node)
    await run.level(node)


@kind
async def flip_meta(run: Torture) -> None:
    """One of the two slots of the vote file is damaged."""
    node = run.rng.choice(run.group.members)
    await run.group.kill(node)
    flip(run.group.commitlog(node) / "meta", run.rng.randrange(2) * 4096 + run.rng.randrange(200), 3)
    await run.group.start(node)
    await run.level(node)


@kind
async def disk_full_follower(run: Torture) -> None:
    """The others go on without it."""
    await _disk_full(run, await run.a_follower())


@kind
async def disk_full_leader(run: Torture) -> None:
    """Another one leads, and has room."""
    node = await run.wait_leader()
    await _disk_full(run, node)


async def _disk_full(run: Torture, node: str) -> None:
    leads = node == await run.wait_leader()
    await run.group.stop(node)
    try:
        await run.group.move_to_small_disk(node, SMALL_DISK_BYTES)
    except PermissionError:
        run.done["no small disk"] += 1
        await run.group.start(node)
        return
    await run.group.start(node)
    await run.level(node)
    if leads:
        await run.group.change("transfer", node)
    small = run.group.moved[node].parent
    used = run.rng.choice((0.92, 0.97, 1.0))
    run.say(f"         {used:.0%} of the disk of {node} is used")
    try:
        fill(small, used)
        await trio.sleep(run.rng.uniform(1, 4))
        try:
            await run.flow()
        except trio.TooSlowError:
            run.broken(f"nothing is stored while only {node} has no room")
    finally:
        (small / BALLAST).unlink(missing_ok=True)
    await run.level(node)
    await run.group.stop(node)
    await run.group.move_back(node)
    await run.group.start(node)
    await run.level(node)
