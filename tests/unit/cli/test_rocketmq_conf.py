"""RocketMQ's broker.conf: what is taken over, what is named, and what is refused."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mq.broker.settings import BrokerSettings
from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.cli.rocketmq_conf import NOT_APPLICABLE, TAKEN, ConfInvalid, convert, to_toml

DLEDGER = """\
# a replica of three, as in RocketMQ's conf/dledger
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876;127.0.0.2:9876
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
dLegerSelfId=n0
sendMessageThreadPoolNums=16
deleteWhen=04
fileReservedTime=48
flushDiskType=ASYNC_FLUSH
"""
GUIDE = Path(__file__).parents[3] / "docs" / "migrating-from-rocketmq.md"
BEGIN, END = "<!-- keys -->", "<!-- end of keys -->"


def test_file_of_a_dledger_group_starts_a_replica() -> None:
    converted = convert(DLEDGER, Path("/conf"))
    settings = BrokerSettings(**converted.settings)
    assert (settings.cluster, settings.group, settings.node_id) == ("RaftCluster", "RaftNode00", "n0")
    assert settings.listen == "127.0.0.1:30911"
    assert settings.peers == "n0@127.0.0.1:40911,n1@127.0.0.1:40912,n2@127.0.0.1:40913"
    assert settings.namesrv_addresses == [("127.0.0.1", 9876), ("127.0.0.2", 9876)]
    assert (settings.delete_when, settings.retention_hours) == (4, 48)
    named = [warning.split(":")[1].split()[0] for warning in converted.warnings]
    assert named == [
        "storePathCommitLog",
        "enableDLegerCommitLog",
        "dLegerGroup",
        "sendMessageThreadPoolNums",
        "flushDiskType",
    ]
    assert "quorum-memory" in converted.warnings[-1], "less durability is chosen, never taken over"


def test_values_are_translated() -> None:
    text = (
        "brokerIP1=10.0.0.7\ntransactionTimeOut=6000\ndiskMaxUsedSpaceRatio=88\naclEnable=true\n"
        "rejectTransactionMessage=true\npreferredLeaderId=n0\ndLegerSelfId=n0\ndLegerPeers=n0-10.0.0.7:40911\n"
    )
    converted = convert(text, Path("/conf"))
    settings = BrokerSettings(**converted.settings)
    assert (settings.listen, settings.advertise) == ("0.0.0.0:10911", "10.0.0.7:10911")
    assert settings.transaction_timeout_seconds == 6
    assert (settings.disk_warn_ratio, settings.disk_expire_ratio, settings.disk_full_ratio) == (0.75, 0.88, 0.9)
    assert settings.acl_file == Path("/conf/plain_acl.yml")
    assert (settings.transactions, settings.priority) == (False, 1)
    assert converted.warnings == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("brokerName", "line 1: 'brokerName' is not KEY=VALUE"),
        ("=a", "line 1: '=a' is not KEY=VALUE"),
        (
            "mapedFileSizeCommitLog=1073741824\nmappedFileSizeCommitLog=1048576",
            "line 2: mappedFileSizeCommitLog means the same as line 1: mapedFileSizeCommitLog",
        ),
        ("# x\nlistenPort=a", "line 2: listenPort: 'a' is not an integer"),
        ("autoCreateTopicEnable=yes", "'yes' is neither true nor false"),
        ("brokerName=a\n\nbrokerName=b", "line 3: brokerName is given twice, first in line 1"),
        ("borkerName=a", "unknown key borkerName; did you mean brokerName"),
        ("dLegerPeers=n0:127.0.0.1", "is not ID-HOST:PORT"),
    ],
)
def test_conversion_errors_name_the_line(text: str, fault: str) -> None:
    with pytest.raises(ConfInvalid) as caught:
        convert(text, Path())
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("maxMessageSize=-5", "line 1: maxMessageSize: Input should be greater than or equal to 1024"),
        ("brokerName=a\nlistenPort=99999", "line 2: listenPort: '127.0.0.1:99999' is not HOST:PORT"),
        ("diskMaxUsedSpaceRatio=400", "line 1: diskMaxUsedSpaceRatio: Input should be less than or equal to 1"),
        ("namesrvAddr=foo", "line 1: namesrvAddr: 'foo' is not HOST:PORT"),
        (
            "deleteWhen=24\nfileReservedTime=0",
            "line 2: fileReservedTime: Input should be greater than 0; line 1: deleteWhen: Input",
        ),
    ],
)
@pytest.mark.parametrize("command", [["config", "convert"], ["broker", "--peers", "n0@127.0.0.1:1", "-c"]])
def test_values_that_no_broker_accepts_are_refused_with_their_lines(
    tmp_path: Path, command: list[str], text: str, fault: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    result = CliRunner().invoke(app, [*command, str(file)])
    assert isinstance(result.exception, CommandFailed)
    assert fault in str(result.exception)


def test_conversion_warns_of_unknown_keys() -> None:
    assert convert("brandNewInSix=1", Path()).warnings == [
        "line 1: brandNewInSix does not apply: unknown to this version of raftmq"
    ]


def test_converted_settings_survive_toml() -> None:
    converted = convert(DLEDGER + 'messageDelayLevel=1s 5s "\\\n', Path())
    assert tomllib.loads(to_toml(converted)) == converted.settings


def test_every_mapped_setting_exists() -> None:
    assert {taken.setting for taken in TAKEN.values()} <= BrokerSettings.model_fields.keys()


def test_guide_has_every_key() -> None:
    """With REWRITE=1 the table is written anew."""
    rows = [f"| `{key}` | `{taken.setting}` | {taken.about} |" for key, taken in sorted(TAKEN.items())]
    rows += [f"| `{key}` | | {reason} |" for key, reason in sorted(NOT_APPLICABLE.items())]
    table = "\n".join(("| key | setting | |", "|---|---|---|", *rows))
    text = GUIDE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    if os.environ.get("REWRITE"):
        GUIDE.write_text(f"{text[:begin]}\n\n{table}\n\n{text[end:]}")
    assert GUIDE.read_text()[begin:].startswith(f"\n\n{table}\n\n{END}"), f"{GUIDE.name}: REWRITE=1"


def test_converted_file_names_accounts_by_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie beside the broker.conf, which is often named by a relative path."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "broker.conf").write_text("aclEnable=true\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["config", "convert", "conf/broker.conf"])
    assert result.exit_code == 0, result.output
    assert f'acl_file = "{tmp_path}/conf/plain_acl.yml"' in result.output.splitlines()
