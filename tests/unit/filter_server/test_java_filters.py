"""Filter classes in Java: what they see, and what they cannot do to others. Without a JDK nothing is tested here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from mq.filter.blocks import Block
from mq.filter.programs import ProgramInvalid
from mq.filter_server.java_filters import JavaFilter, JavaLimits, JavaSandbox, java_program, parse_java_program
from mq.filter_server.java_machine import Machine
from mq.filter_server.picking import records_in
from mq.protocol.messages.records import encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset

needs_jdk = pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK")

SOURCE = """
package demo;
import org.apache.rocketmq.common.filter.FilterContext;
import org.apache.rocketmq.common.filter.MessageFilter;
import org.apache.rocketmq.common.message.MessageExt;
public class Filter implements MessageFilter {
    public boolean match(MessageExt m, FilterContext context) {
        switch (new String(m.getBody())) {
            case "throws": throw new IllegalStateException("boom");
            case "exits": System.exit(0);
            case "endless": while (true) {}
            case "prints": System.out.println("anything"); return true;
            case "group": return context.getConsumerGroup().equals("billing") && m.getTopic().equals("Orders");
            case "record":
                return m.getQueueId() == 3 && m.getQueueOffset() == 0 && m.getBornTimestamp() == 17
                    && m.getStoreTimestamp() == 18 && m.getReconsumeTimes() == 2 && m.getTags().equals("A")
                    && m.getBornHost().toString().equals("/1.2.3.4:5");
            case "secret": return System.getenv("RAFTMQ_SECRET_KEY") == null;
            case "network": try { new java.net.Socket("127.0.0.1", 1).close(); } catch (java.io.IOException e) {
                throw new RuntimeException(e.getMessage()); }
            case "file": try { new java.io.FileOutputStream("written").write(1); } catch (java.io.IOException e) {
                throw new RuntimeException(e.getMessage()); }
            default: return "eu".equals(m.getProperty("region"));
        }
    }
}
"""


def block(*bodies: str) -> Block:
    data = b"".join(
        encode_record(
            topic="Orders",
            queue_id=3,
            body=body.encode(),
            properties="TAGS\x01A\x02region\x01eu\x02",
            queue_offset=QueueOffset(offset),
            physical_offset=PhysicalOffset(0),
            born_timestamp_ms=17,
            born_host=bytes([1, 2, 3, 4, 0, 0, 0, 5]),
            store_timestamp_ms=18,
            store_host=bytes(8),
            reconsume_times=2,
        )
        for offset, body in enumerate(bodies)
    )
    records = records_in(data)
    return Block(data, records.places, records.ends)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[JavaSandbox]:
    made = JavaSandbox(JavaLimits(seconds_per_message=1.0, processes_max=2))
    yield made
    made.close()


@pytest.fixture(scope="module")
def loaded(sandbox: JavaSandbox) -> JavaFilter:
    return sandbox.load(java_program("demo.Filter", SOURCE.encode()), "billing", "Orders")


@needs_jdk
def test_class_sees_the_message_and_its_group(loaded: JavaFilter) -> None:
    verdicts = loaded.run(block("record", "group", "anything"))
    assert verdicts.passes == [True, True, True]
    assert not verdicts.failures
    assert verdicts.seconds > 0


@needs_jdk
def test_each_failure_belongs_to_its_message(loaded: JavaFilter) -> None:
    verdicts = loaded.run(block("a", "throws", "prints", "exits", "b", "endless", "c"))
    assert verdicts.passes == [True, False, True, False, True, False, True]
    assert "boom" in verdicts.failures[1]
    assert "has ended" in verdicts.failures[3]
    assert "took longer" in verdicts.failures[5]


@needs_jdk
def test_filter_class_has_no_access_to_secrets_network_or_files(
    sandbox: JavaSandbox, loaded: JavaFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTMQ_SECRET_KEY", "secret")
    loaded.rest()
    verdicts = loaded.run(block("secret", "file", "network"))
    assert verdicts.passes[0]
    assert 1 in verdicts.failures
    if not sandbox.has_network:
        assert "unreachable" in verdicts.failures[2]


def one_line_class(match: str, more: str = "") -> bytes:
    """A class F whose method has this body."""
    return java_program(
        "F",
        "public class F implements org.apache.rocketmq.common.filter.MessageFilter { "
        "static java.util.List<byte[]> kept = new java.util.ArrayList<>(); "
        f"{more} public boolean match(org.apache.rocketmq.common.message.MessageExt m, "
        f"org.apache.rocketmq.common.filter.FilterContext c) {{ {match} }} }}".encode(),
    )


@needs_jdk
def test_leaking_filter_class_restarts_with_fresh_memory(sandbox: JavaSandbox) -> None:
    program = one_line_class("kept.add(new byte[8 << 20]); return m.getBody().length == 1;")
    leaks = sandbox.load(program, "billing", "Orders")
    for _ in range(5):
        verdicts = leaks.run(block("a", "bb", "c"))
        assert (verdicts.passes, verdicts.failures) == ([True, False, True], {})
    leaks.close()


@needs_jdk
def test_message_that_takes_all_memory_fails_alone(sandbox: JavaSandbox) -> None:
    program = one_line_class("while (m.getBody().length == 2) kept.add(new byte[1 << 20]); return true;")
    hungry = sandbox.load(program, "billing", "Orders")
    verdicts = hungry.run(block("a", "bb", "c"))
    assert verdicts.passes == [True, False, True]
    assert "OutOfMemoryError" in verdicts.failures[1]
    hungry.close()


@needs_jdk
def test_class_that_exits_is_started_once_per_message(sandbox: JavaSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    exits = sandbox.load(one_line_class("System.exit(0); return true;"), "billing", "Orders")
    exits.run(block(*"abcdefgh"), seconds_max=0)
    starts: list[Machine] = []
    wait_ready = Machine.wait_ready

    def noted(machine: Machine) -> None:
        starts.append(machine)
        wait_ready(machine)

    monkeypatch.setattr(Machine, "wait_ready", noted)
    verdicts = exits.run(block(*"bcdefgh"), seconds_max=0)
    assert (verdicts.passes, len(starts)) == ([False], 1)
    exits.close()


@needs_jdk
def test_filter_class_with_an_endless_constructor_is_refused_soon(sandbox: JavaSandbox) -> None:
    with pytest.raises(ProgramInvalid, match="creating it took longer than 2000 ms"):
        sandbox.load(one_line_class("return true;", "public F() { while (true) {} }"), "billing", "Orders")


@needs_jdk
def test_pull_still_filters_with_a_class_closed_for_others(sandbox: JavaSandbox) -> None:
    closed = sandbox.load(one_line_class("return false;"), "billing", "Orders")
    closed.close()
    verdicts = closed.run(block("a"))
    assert (verdicts.passes, verdicts.failures) == ([False], {})
    closed.close()


@needs_jdk
def test_filter_class_is_refused_if_its_files_cannot_be_written(sandbox: JavaSandbox) -> None:
    with pytest.raises(ProgramInvalid, match=r"cannot be written to .*: File name too long"):
        sandbox.load(b"// " + b"A" * 253 + b"\nclass A {}", "billing", "Orders")


@pytest.mark.slow
@needs_jdk
def test_virtual_machine_used_last_makes_room_for_another(sandbox: JavaSandbox, loaded: JavaFilter) -> None:
    others = [sandbox.load(java_program("demo.Filter", SOURCE.encode()), str(number), "Orders") for number in range(2)]
    for each in (loaded, *others, loaded):
        assert each.run(block("a")).passes == [True]
    for each in others:
        each.close()


@needs_jdk
@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("demo.Filter", "package demo; public class Filter { void f( }", "javac refuses the class: .*illegal start"),
        ("demo.Filter", "package demo; public class Filter { }", "cannot be cast"),
        ("demo.Filter", "package other; public class Filter { }", "ClassNotFoundException"),
        (
            "F",
            "public class F implements org.apache.rocketmq.common.filter.MessageFilter { public F() { throw new Error("
            '"no"); } public boolean match(org.apache.rocketmq.common.message.MessageExt m, '
            "org.apache.rocketmq.common.filter.FilterContext c) { return true; } }",
            "Error: no",
        ),
    ],
)
def test_unusable_filter_class_is_refused(sandbox: JavaSandbox, name: str, source: str, reason: str) -> None:
    with pytest.raises(ProgramInvalid, match=reason):
        sandbox.load(java_program(name, source.encode()), "billing", "Orders")


@pytest.mark.parametrize("name", ["", "a b", "../../etc/passwd", "a..b", "1a", "wasm:00", "A" * 201])
def test_text_that_names_no_class_is_refused(name: str) -> None:
    with pytest.raises(ProgramInvalid):
        java_program(name, b"")


def test_program_has_the_name_of_its_class() -> None:
    content = java_program("a.b.C$D_1", b"source")
    assert parse_java_program(content) == ("a.b.C$D_1", content)
    with pytest.raises(ProgramInvalid, match="does not begin"):
        parse_java_program(b"source")


def test_java_filter_without_jdk_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ProgramInvalid, match="need a JDK"):
        JavaSandbox(JavaLimits())
