"""`docs/settings.md` against the code: every setting, its default, allowed values and meaning. REWRITE=1 writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from mq.broker.admin.broker_config import CHANGEABLE, WHY_FIXED
from mq.broker.setting_fields import ChangeableSettings, SettingGroup
from mq.broker.settings import BrokerSettings
from mq.console.settings import ConsoleSettings
from mq.filter_server.settings import FilterServerSettings
from mq.namesrv.settings import NamesrvSettings
from mq.proxy.settings import ProxySettings
from mq.settings import ProcessSettings

GUIDE: Final = Path(__file__).parents[3] / "docs" / "settings.md"
SERVERS: Final = (
    ("broker", BrokerSettings),
    ("name server", NamesrvSettings),
    ("proxy", ProxySettings),
    ("filter", FilterServerSettings),
    ("console", ConsoleSettings),
)
REQUIRED: Final = {"peers"}
"""`raftmq broker` does not start with the default of the class."""

UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def shown(name: str, value: object) -> str:
    """A value as TOML has it; a size also in a unit."""
    match value:
        case None | "":
            return "-"
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            text = f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
            unit = next((f" ({value // size:g} {unit})" for unit, size in UNITS if value and value % size == 0), "")
            return text + (unit if "bytes" in name else "")
        case _:
            return f'`"{value}"`'


def allowed(name: str, field: FieldInfo) -> str:
    """The range or the list of allowed values; empty for texts and switches."""
    kinds = [each for each in (get_args(field.annotation) or (field.annotation,)) if each is not type(None)]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    if not {int, float} & set(kinds):
        return ""
    least = next((each.ge for each in field.metadata if isinstance(each, annotated_types.Ge)), None)
    above = next((each.gt for each in field.metadata if isinstance(each, annotated_types.Gt)), None)
    most = next((each.le for each in field.metadata if isinstance(each, annotated_types.Le)), None)
    low = "" if least is None and above is None else f"at least {least}" if above is None else f"above {above}"
    return ", ".join(each for each in (low, "" if most is None else f"at most {most}") if each)


def rows(settings: type[ProcessSettings]) -> Iterator[str]:
    yield "| setting | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, field in settings.model_fields.items():
        default: Any = None if name in REQUIRED else field.default
        yield f"| `{name}` | {shown(name, default)} | {allowed(name, field)} | {field.description or ''} |"


def changes() -> Iterator[str]:
    """Which settings of a broker change while it runs, and why the others do not."""
    named = {ours: name for name, ours in CHANGEABLE.items()}
    yield "| setting of a broker | changes while it runs |"
    yield "|---|---|"
    for group in SettingGroup.__subclasses__():
        fixed = [f"`{name}`" for name in group.model_fields if name not in named]
        if fixed:
            yield f"| {', '.join(fixed)} | no: {group.why_fixed} |"
        for name in group.model_fields:
            if name in named:
                yield f"| `{name}` | yes: `{named[name]}` |"


def former_names() -> Iterator[str]:
    yield "| former name | name | of |"
    yield "|---|---|---|"
    for title, settings in SERVERS:
        for former, name in sorted(settings.former_names.items()):
            yield f"| `{former}` | `{name}` | {title} |"


def test_guide_has_every_setting() -> None:
    wanted = GUIDE.read_text()
    for title, settings in SERVERS:
        begin, end = f"<!-- {title} settings -->", f"<!-- end of {title} settings -->"
        before, _, rest = wanted.partition(begin)
        wanted = "\n".join([f"{before}{begin}", "", *rows(settings), "", f"{end}{rest.partition(end)[2]}"])
    begin, end = "<!-- what changes -->", "<!-- end of what changes -->"
    before, _, rest = wanted.partition(begin)
    wanted = "\n".join([f"{before}{begin}", "", *changes(), "", f"{end}{rest.partition(end)[2]}"])
    begin, end = "<!-- former names -->", "<!-- end of former names -->"
    before, _, rest = wanted.partition(begin)
    wanted = "\n".join([f"{before}{begin}", "", *former_names(), "", f"{end}{rest.partition(end)[2]}"])
    if os.environ.get("REWRITE"):
        GUIDE.write_text(wanted)
    assert GUIDE.read_text() == wanted, "docs/settings.md: REWRITE=1"


def test_only_changeable_settings_change_at_run_time() -> None:
    assert set(CHANGEABLE.values()) == ChangeableSettings.model_fields.keys()
    assert {name for name, why in WHY_FIXED.items() if not why} == set(CHANGEABLE.values())


def test_every_setting_of_a_broker_is_in_one_group() -> None:
    names = [name for group in SettingGroup.__subclasses__() for name in group.model_fields]
    assert sorted(names) == sorted(BrokerSettings.model_fields)


@pytest.mark.parametrize("settings", [settings for _, settings in SERVERS])
def test_every_setting_has_a_meaning(settings: type[ProcessSettings]) -> None:
    assert [name for name, field in settings.model_fields.items() if not field.description] == []
