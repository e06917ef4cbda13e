"""From a file to a verdict: the recorder, the judge, the page and the command."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from checkers import CHECKERS
from checkers.events import RUN, Event
from checkers.history import decode_events, gather
from checkers.recording import Worker
from checkers.verdict import Verdict
from jepsen.cli import CannotRun, app, main
from jepsen.derived_messages import DAMAGED
from jepsen.judge import REPORT, VERDICT, NotARun, VerdictNotWritten, judge
from jepsen.recorder import Recorder
from jepsen.report.page import page
from jepsen.report.timeline import draw
from jepsen.run import HISTORY, Plan, new_directory
from jepsen.schedule import KINDS
from jepsen.stored_records import UNREADABLE, values_in
from jepsen.workloads import WORKLOADS
from tests.unit.jepsen.histories import NODES, Script


def recorder_at(path: Path) -> Recorder:
    ticks = itertools.count(step=1000)
    return Recorder(path, lambda: next(ticks))


def test_history_reaches_its_file_during_the_run(tmp_path: Path) -> None:
    path = tmp_path / HISTORY
    with recorder_at(path) as recorder:
        worker = Worker(recorder)
        worker.invoke("send", k="Log/0", v="0.0.0")
        worker.ok("send", k="Log/0", v="0.0.0", o=4)
        with path.open("rb") as lines:
            (operation,) = gather(decode_events(lines)).operations
    assert (operation.offset, operation.began, operation.ended) == (4, 0, 1000)


def test_worker_is_another_process_after_an_unknown_outcome(tmp_path: Path) -> None:
    with recorder_at(tmp_path / HISTORY) as recorder:
        worker = Worker(recorder)
        before = worker.process
        worker.invoke("send", v="0.0.0")
        worker.fail("send", "no room", v="0.0.0")
        assert worker.process == before
        worker.invoke("send", v="0.1.0")
        worker.info("send", "no answer", v="0.1.0")
        assert worker.process != before


def test_history_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    with recorder_at(tmp_path / HISTORY), pytest.raises(FileExistsError):
        recorder_at(tmp_path / HISTORY)


def stored(script: Script, directory: Path, *, workload: str = "log") -> Path:
    """The script as a run in a directory; its first event says what it is of."""
    first = script.events[0]
    events = [msgspec.structs.replace(first, v={**first.v, "workload": workload}), *script.events[1:]]
    (directory / HISTORY).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return directory


def good_run() -> Script:
    """A calm run in which everything held."""
    script = Script()
    values = [f"1.{number}.10" for number in range(60)]
    for offset, value in enumerate(values):
        script.sent(value, offset)
    script.final_everywhere(values)
    for node in NODES:
        script.add(RUN, "info", "verified", n=node, v="intact")
    script.add(RUN, "info", "compared", v=[])
    script.add(RUN, "info", "send-paths", v={"compiled": 60, "others": 3})
    script.add(RUN, "info", "end")
    return script


def test_run_without_anomalies_is_valid(tmp_path: Path) -> None:
    assert judge(stored(good_run(), tmp_path)).valid is True
    assert json.loads((tmp_path / VERDICT).read_text())["valid"] is True
    assert "valid" in (tmp_path / REPORT).read_text()


def test_missing_acknowledged_message_fails_the_run(tmp_path: Path) -> None:
    script = good_run()
    script.events = [event for event in script.events if event.f != "end"]
    script.sent("2.0.10", 60, process=2)
    script.add(RUN, "info", "end")
    verdict = judge(stored(script, tmp_path))
    assert verdict.valid is False
    assert "lost-write" in (tmp_path / REPORT).read_text()


def test_killed_run_is_unknown(tmp_path: Path) -> None:
    script = good_run()
    script.events = script.events[:-1]
    assert judge(stored(script, tmp_path)).valid == "unknown"


def test_messages_missing_from_a_run_cut_short_may_still_arrive(tmp_path: Path) -> None:
    script = good_run()  # nobody consumes
    assert judge(stored(script, tmp_path, workload="queue")).valid is False
    script.events = script.events[:-1]
    assert judge(stored(script, tmp_path, workload="queue")).valid == "unknown"
    assert "may only be late" in (tmp_path / VERDICT).read_text()


def test_directory_without_a_history_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=HISTORY):
        judge(tmp_path)


def test_damaged_line_is_reported(tmp_path: Path) -> None:
    stored(good_run(), tmp_path)
    with (tmp_path / HISTORY).open("ab") as file:
        file.write(b"rubbish\n")
    with pytest.raises(NotARun, match=r"line \d+"):
        judge(tmp_path)


def test_unreadable_history_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / HISTORY).mkdir()
    with pytest.raises(NotARun, match="cannot be read: Is a directory"):
        judge(tmp_path)
    with pytest.raises(NotARun, match="cannot be read: Not a directory"):
        judge(Path(__file__))


def test_unwritable_verdict_is_still_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(good_run(), tmp_path)
    (tmp_path / VERDICT).mkdir()
    with pytest.raises(VerdictNotWritten, match=r"cannot be written to .*: Is a directory") as raised:
        judge(tmp_path)
    assert raised.value.verdict.valid is True
    assert command("check", str(tmp_path)) == 0
    assert "cannot be written" in capsys.readouterr().err


def test_crashed_checker_is_not_reported_as_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("jepsen.cli.judge", fail)
    monkeypatch.setattr("jepsen.cli.configure_logging", lambda level: None)
    monkeypatch.setattr("sys.argv", ["raftmq-jepsen", "check", "store"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_judging_a_run_without_events_is_refused(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_bytes(b"")
    with pytest.raises(NotARun, match="before it began"):
        judge(tmp_path)


def test_every_workload_has_checkers() -> None:
    assert CHECKERS.keys() == WORKLOADS.keys()


def test_page_escapes_faults_and_messages() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", seen="<gone>", during=["1.1.10"])
    script.add(RUN, "info", "role", n="n0", v=("leader", "3"))
    script.failed("<b>", 2)
    history = script.history()
    text = page(history, Verdict([check(history) for check in CHECKERS["log"]], history.plan))
    assert "&lt;gone&gt;" in text
    assert "<gone>" not in text
    assert "http" not in text.replace("http-equiv", ""), "the page must not load anything"


def test_picture_of_many_sends_stays_small(script: Script) -> None:
    for number in range(20_000):
        script.sent(f"1.{number}.10", number)
    picture = draw(script.history())
    assert picture.count("<circle") < 8_000
    assert len(picture) < 1_000_000


def test_picture_escapes_names_of_servers_and_clients() -> None:
    script = Script(nemeses=["kill"], nodes=["n0", "<n1>"])
    script.fault("kill & more", during=["1.1.10"])
    script.add(RUN, "info", "role", n="<n1>", v=("leader", "3"))
    script.failed("1.2.10", 2, "info")
    picture = ElementTree.fromstring(draw(script.history()))
    assert picture.tag == "svg"
    assert len(picture.findall("circle")) == 2


def test_picture_of_nothing_is_empty_and_no_error() -> None:
    assert draw(gather([])).startswith("<svg")


def test_undecodable_records_are_damaged() -> None:
    ((offset, value, _),) = values_in(b"\0" * 200)
    assert offset == UNREADABLE
    assert value.startswith(DAMAGED)


def test_directories_of_runs_differ(tmp_path: Path) -> None:
    plan = Plan("log", ("kill", "pause"), 60, 7, "local")
    one, other = new_directory(tmp_path, plan, "T"), new_directory(tmp_path, plan, "T")
    assert one.name == "T-log-kill+pause"
    assert other.name == "T-log-kill+pause-1"


def test_plan_prints_the_command_to_repeat_the_run() -> None:
    assert Plan("log", ("kill", "pause"), 60, 7, "local").command == (
        "raftmq-jepsen run --workload log --nemesis kill,pause --time 60 --seed 7 --backend local"
    )


def command(*arguments: str) -> int | None:
    """The exit code of the command."""
    return app(arguments, standalone_mode=False)  # type: ignore[no-any-return]


def test_check_ends_with_0_1_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", str(stored(good_run(), tmp_path))) == 0
    unfinished = Script()
    unfinished.events = good_run().events[:-1]
    assert command("check", str(stored(unfinished, tmp_path))) == 2
    broken = Script()
    broken.events = [
        msgspec.structs.replace(event, o=99) if event.f == "send" and event.type == "ok" and event.o == 5 else event
        for event in good_run().events
    ]
    assert command("check", str(stored(broken, tmp_path))) == 1
    assert "lost-write" in capsys.readouterr().out


def test_unknown_names_are_refused_with_the_nearest_valid_names_first(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"no workload 'qeue'; there are queue, "):
        command("run", "--workload", "qeue", "--store", str(tmp_path))
    with pytest.raises(CannotRun, match=r"no nemesis 'kil'; there are kill, "):
        command("run", "--nemesis", "kil", "--store", str(tmp_path))
    with pytest.raises(CannotRun, match=r"no back end 'dokcer'; there are docker, "):
        command("run", "--backend", "dokcer", "--store", str(tmp_path))
    with pytest.raises(CannotRun, match=r"no scenario 'helixx'; there are helix, "):
        command("scenario", "helixx", "--store", str(tmp_path))
    with pytest.raises(CannotRun, match=r"no profile 'smok'; there are smoke, "):
        command("matrix", "--profile", "smok", "--store", str(tmp_path))
    with pytest.raises(CannotRun, match=r"'6/5' is not a part"):
        command("matrix", "--part", "6/5", "--store", str(tmp_path))
    assert not list(tmp_path.iterdir()), "nothing is made for a run that cannot be"


def test_matrix_with_unavailable_faults_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = judge(stored(good_run(), tmp_path))
    monkeypatch.setattr("jepsen.cli._run", lambda plan, store: (good, tmp_path, False))
    monkeypatch.setattr("jepsen.cli.why_not", lambda backend: None)
    monkeypatch.setattr("jepsen.cli.why_no_fault", lambda kind, backend: "no tape" if kind == "damage" else None)
    monkeypatch.setattr("jepsen.cli.why_default", lambda: "")
    report = tmp_path / "report.md"
    assert command("matrix", "--profile", "smoke", "--report", str(report)) == 3
    said = capsys.readouterr().out
    first, *_ = said.splitlines()
    assert first == "left out of these runs: damage: no tape"
    assert "nothing is broken, but this was left out: damage: no tape" in said.splitlines()[-1]
    assert "restart, rot " in said, "the other faults of its group are carried out"
    assert "no tape" in report.read_text()
    assert said.count(" valid ") >= 2


def without_nft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "nft" else f"/usr/bin/{tool}")
    monkeypatch.setattr("jepsen.deployments.netns.os.geteuid", lambda: 0)


def test_matrix_first_names_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_nft(monkeypatch)
    good = judge(stored(good_run(), tmp_path))
    monkeypatch.setattr("jepsen.cli._run", lambda plan, store: (good, tmp_path, False))
    assert command("matrix", "--profile", "ci", "--store", str(tmp_path)) == 3
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "netns cannot be used: not installed: nft (apt install nftables)" in first
    assert "packets" in second


def test_matrix_changes_published_reports_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published, store = tmp_path / "reports", tmp_path / "store"
    good = judge(stored(good_run(), tmp_path))
    monkeypatch.setattr("jepsen.cli.REPORTS", published)
    monkeypatch.setattr("jepsen.cli._run", lambda plan, store: (good, tmp_path, False))
    options = ["--profile", "ci", "--backend", "local", "--store", str(store)]
    command("matrix", *options)
    assert not published.exists()
    assert "| log |" in (store / "jepsen-ci-local.md").read_text()
    command("matrix", *options, "--publish")
    assert (published / "jepsen-ci-local.json").exists()


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    command("list")
    said = capsys.readouterr().out
    for name in (*WORKLOADS, *KINDS, "netns", "local", "docker"):
        assert name in said


def test_events_of_a_run_are_not_operations() -> None:
    history = gather([Event(0, 1, RUN, "info", "begin", v={}), Event(1, 2, RUN, "info", "end")])
    assert history.operations == []
    assert history.is_complete
