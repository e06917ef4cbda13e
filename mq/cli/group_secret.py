"""`raftmq group secret`: shows and changes the secret of a broker group in the file of one replica, also while
it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mq.cli.errors import CommandFailed
from mq.cli.output import Json, print_json
from raftlog.net.authentication import SECRETS_MAX
from raftlog.net.secret_file import (
    FILE_NAME,
    SecretMissing,
    SecretUnusable,
    format_secrets,
    new_secret,
    parse_secrets,
    read_secrets,
    write_secrets,
)

app = typer.Typer(
    help="Show, copy and change the secret of a group. Its replicas authenticate each other with it.",
    no_args_is_help=True,
)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help=f"Data directory of the replica, with its file {FILE_NAME}.")
]
File = Annotated[Path | None, typer.Option("--file", help="The file itself, if the setting secret_file names another.")]


@app.command("show")
def show(data_dir: DataDir = None, file: File = None, as_json: Json = False) -> None:
    """Print the valid secrets, the newest first. They are in the form that `raftmq group secret set` reads."""
    path = _path(data_dir, file)
    text = format_secrets(_read(path)).decode()
    if as_json:
        print_json({"file": path, "secrets": text.split()})
    else:
        sys.stdout.write(text)


@app.command("set")
def set_secret(data_dir: DataDir = None, file: File = None, as_json: Json = False) -> None:
    """Write the secrets from standard input to the file.

    If the file has secrets already, the new ones must include one of them.
    """
    path = _path(data_dir, file)
    try:
        secrets = parse_secrets("standard input", sys.stdin.buffer.read(4097))
        try:
            before = read_secrets(path)
        except SecretMissing:
            before = ()
    except SecretUnusable as error:
        raise CommandFailed(str(error)) from error
    if before and not set(before) & set(secrets):
        raise CommandFailed(
            f"{path} has another secret, nothing was changed: the new one would cut the replica off from its group"
        )
    _write(path, secrets)
    was = "were none" if not before else f"was {_count(before)}"
    _print_change(path, before, secrets, f"{_count(secrets)}, where there {was}", as_json)


@app.command("add")
def add(data_dir: DataDir = None, file: File = None, as_json: Json = False) -> None:
    """Add a new secret; the current one stays valid. This is the first step of a change of the secret."""
    path = _path(data_dir, file)
    before = _read(path)
    if len(before) == SECRETS_MAX:
        raise CommandFailed(f"{path} already has {_count(before)}: finish with `raftmq group secret drop-old` first")
    after = (new_secret(), *before)
    _write(path, after)
    text = "a new secret was added, the old one stays valid; now copy this file to the other replicas"
    _print_change(path, before, after, text, as_json)


@app.command("drop-old")
def drop_old(data_dir: DataDir = None, file: File = None, as_json: Json = False) -> None:
    """Drop the old secret. This is the last step, when every replica has the new one."""
    path = _path(data_dir, file)
    before = _read(path)
    if len(before) == 1:
        raise CommandFailed(f"{path} has only one secret, nothing was changed")
    _write(path, before[:1])
    _print_change(path, before, before[:1], "the old secret is no longer valid", as_json)


def _path(data_dir: Path | None, file: Path | None) -> str:
    if (data_dir is None) == (file is None):
        raise CommandFailed("pass either --data-dir or --file")
    return str(file if data_dir is None else data_dir / FILE_NAME)


def _read(path: str) -> tuple[bytes, ...]:
    try:
        return read_secrets(path)
    except SecretUnusable as error:
        raise CommandFailed(str(error)) from error


def _write(path: str, secrets: tuple[bytes, ...]) -> None:
    try:
        write_secrets(path, secrets)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}; nothing was changed") from error


def _print_change(path: str, before: Sequence[bytes], after: Sequence[bytes], text: str, as_json: bool) -> None:
    """Describe the change, without printing a secret."""
    if as_json:
        print_json({"file": path, "secrets_before": len(before), "secrets": len(after)})
    else:
        print(f"{path}: {text}")


def _count(secrets: tuple[bytes, ...]) -> str:
    return "one secret" if len(secrets) == 1 else f"{len(secrets)} secrets"
