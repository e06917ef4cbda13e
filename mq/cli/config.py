"""`raftmq config`: settings files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mq.cli.errors import CommandFailed
from mq.cli.output import Json, print_json
from mq.cli.rocketmq_conf import ConfInvalid, ConvertedConf, convert, to_toml

app = typer.Typer(help="Convert settings files of RocketMQ.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Convert settings files of RocketMQ."""


@app.command("convert")
def convert_file(
    file: Annotated[Path, typer.Argument(metavar="BROKER.CONF", help="RocketMQ's properties file.")],
    as_json: Json = False,
) -> None:
    """Print the settings of a broker.conf as TOML. Keys that do not apply become comments."""
    conf = read_conf(file)
    if as_json:
        print_json({"settings": conf.settings, "not_taken_over": conf.warnings})
    else:
        sys.stdout.write(to_toml(conf))


def read_conf(file: Path) -> ConvertedConf:
    """Parse a broker.conf and check its values. Raises CommandFailed."""
    try:
        conf = convert(file.read_text(), file.absolute().parent)
    except ConfInvalid as error:
        raise CommandFailed(f"{file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    _check_values(file, conf)
    return conf


def _check_values(file: Path, conf: ConvertedConf) -> None:
    """Detect values that no broker accepts, by line and key. Raises CommandFailed.

    Flags may still add or replace settings, so whether the settings agree with each other is not checked.
    """
    from pydantic import ValidationError

    from mq.broker.settings import BrokerSettings

    try:
        BrokerSettings(**conf.settings)
    except ValidationError as error:
        faults = [
            f"{conf.origins[name]}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
            if fault["loc"] and (name := str(fault["loc"][0])) in conf.origins
        ]
        if faults:
            raise CommandFailed(f"{file}: {'; '.join(faults)}") from error
