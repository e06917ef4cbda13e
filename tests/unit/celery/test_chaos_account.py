"""The account of the chaos run finds what went wrong."""

from __future__ import annotations

from benchmarks.celery_load.chaos_account import ACKNOWLEDGED_SECONDS, Account, Progress, account, runs_of, sent_of

SENT = ["task a", "task b", "chord body part1 part2"]


def of(*notes: str, kills: dict[int, float] | None = None) -> Account:
    sent, chords, errors = sent_of(SENT)
    return account(sent, chords, runs_of(notes), kills or {}, may_be_sent=bool(errors))


def run(task: str, *, run: str | None = None, pid: int = 1, began: float = 10, ends: bool = True) -> str:
    run = run or task
    lines = [f"began {run} {task} {pid} {began} -"]
    return "\n".join([*lines, f"ended {run} {began + 1}"] if ends else lines)


def lines(*texts: str) -> list[str]:
    return [line for text in texts for line in text.splitlines()]


ALL = lines(run("a"), run("b"), run("part1"), run("part2"), run("body", began=12))


def test_complete_run_has_no_findings() -> None:
    found = of(*ALL)
    assert found.is_good
    assert (found.sent, found.chords, found.again) == (5, 1, [])


def test_unfinished_task_is_reported_as_lost() -> None:
    found = of(*lines(run("a", ends=False), run("b"), run("part1"), run("part2")))
    assert sorted(found.lost) == ["a", "body"]
    assert not found.is_good


def test_second_run_is_attributed_to_the_process_killed_in_the_first() -> None:
    again = lines(run("a", run="first", pid=7, began=5, ends=False))
    assert of(*again, *ALL, kills={7: 6.0}).is_good
    assert not of(*again, *ALL).is_good
    assert not of(*again, *ALL, kills={7: 4.0}).is_good, "another process had that id before"
    assert not of(*again, *ALL, kills={7: 11.0}).is_good, "it was killed after the second run had begun"
    assert not of(*again, *ALL, kills={1: 6.0}).is_good, "another process was killed"


def test_run_that_had_ended_long_before_explains_nothing() -> None:
    again = lines(run("a", run="first", pid=7, began=5))
    late = [line.replace(" 10 ", " 100 ").replace(" 11", " 101") for line in ALL]
    assert of(*again, *late, kills={7: 6.0 + ACKNOWLEDGED_SECONDS}).is_good
    assert not of(*again, *late, kills={7: 6.5 + ACKNOWLEDGED_SECONDS}).is_good


def test_chord_body_reruns_only_if_a_part_reran() -> None:
    again = lines(run("body", run="first", began=11))
    assert [each.task for each in of(*ALL, *again).untraced_runs] == ["body"]
    part = lines(run("part1", run="killed", pid=7, began=5, ends=False))
    assert of(*ALL, *again, *part, kills={7: 6.0}).is_good


def test_account_finds_tasks_run_too_early() -> None:
    early = [line.replace(" -", " 10.5") if " a " in line else line for line in ALL]
    assert [each.task for each in of(*early).early] == ["a"]
    assert of(*[line.replace(" -", " 9.5") for line in ALL]).late_seconds[0] == 0.5


def test_account_finds_unsent_tasks_unless_sends_failed() -> None:
    assert of(*ALL, *lines(run("c"))).unknown == ["c"]
    sent, chords, errors = sent_of([*SENT, "error TimeoutError()"])
    found = account(sent, chords, runs_of([*ALL, *lines(run("c"))]), {}, may_be_sent=bool(errors))
    assert found.is_good
    assert errors == ["TimeoutError()"]


def test_task_ending_twice_counts_once() -> None:
    """The program counted ends, and stopped the workers while the last task was running."""
    progress = Progress()
    assert not progress.feed(b"began r1 first 1 0.0 -\nbegan r2 first 2 0.0 -\nbegan r3 la")
    assert progress.feed(b"st 1 0.0 -\nended r1 1.0\nended r2 1.0\n")
    assert progress.ended == {"first"}
    assert progress.feed(b"ended r3 2.0\n")
    assert progress.ended == {"first", "last"}
