"""`raftmq config`: settings files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mq.cli.errors import CommandFailed
from mq.cli.output import Json, print_json
from mq.cli.rocketmq_conf import ConfInvalid, Converted, convert, to_toml

app = typer.Typer(help="Convert settings files of RocketMQ.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Convert settings files of RocketMQ."""


@app.command("convert")
def convert_file(
    file: Annotated[Path, typer.Argument(metavar="BROKER.CONF", help="RocketMQ's properties file.")],
    as_json: Json = False,
) -> None:
    """Print the settings of a broker.conf as TOML; keys that do not apply become comments."""
    converted = read_conf(file)
    if as_json:
        print_json({"settings": converted.settings, "not_taken_over": converted.warnings})
    else:
        sys.stdout.write(to_toml(converted))


def read_conf(file: Path) -> Converted:
    """Parse a broker.conf. Raises CommandFailed."""
    try:
        return convert(file.read_text(), file.absolute().parent)
    except ConfInvalid as error:
        raise CommandFailed(f"{file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error
