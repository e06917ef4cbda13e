"""WebAssembly filters in their sandbox: what they decide, and what they cannot do."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator

import pytest
import wasmtime

from mq.filter.blocks import Block, Message, block_of
from mq.filter.programs import ProgramInvalid
from mq.filter.wasm import WasmLimits
from mq.filter_server.wasm_sandbox import EPOCH_SECONDS, Sandbox
from tests.support.filter_servers import ENDLESS, EVERYTHING, FIRST_BYTE, begins_with, fails_at, module

MUTANTS = 400


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(WasmLimits(fuel_per_message=2_000_000, memory_bytes_max=4 * 1024 * 1024))
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(EPOCH_SECONDS):
            made.tick()

    thread = threading.Thread(target=tick)
    thread.start()
    yield made
    ended.set()
    thread.join()


def messages(*bodies: bytes, properties: bytes = b"TAGS\x01A\x02") -> Block:
    return block_of([Message(properties, body) for body in bodies])


def test_wasm_filter_decides_by_the_body(sandbox: Sandbox) -> None:
    verdicts = sandbox.load(begins_with("a")).run(messages(b"ab", b"b", b"a", b""))
    assert verdicts.passes[:3] == [True, False, True]
    assert not verdicts.failures


def test_wasm_filter_sees_the_properties(sandbox: Sandbox) -> None:
    fifth = module("(i32.eq (i32.load8_u offset=5 (local.get $p)) (i32.const 65))")
    loaded = sandbox.load(fifth)
    assert loaded.run(messages(b"")).passes == [True]
    assert loaded.run(messages(b"", properties=b"TAGS\x01B\x02")).passes == [False]


def test_wasm_filter_sees_the_sizes_of_the_message(sandbox: Sandbox) -> None:
    loaded = sandbox.load(module("(i32.eq (i32.mul (local.get $ps) (local.get $bs)) (i32.const 21))"))
    assert loaded.run(messages(b"abc", b"ab")).passes == [True, False]


def test_many_messages_take_several_runs(sandbox: Sandbox) -> None:
    pass_by_chance = random.Random(1).choices([False, True], k=1000)
    bodies = [(b"b" if passes else b"a") + bytes(900) for passes in pass_by_chance]
    passes = sandbox.load(begins_with("b")).run(messages(*bodies)).passes
    assert len(passes) == 1000
    wrong = [number for number in range(1000) if passes[number] != pass_by_chance[number]]
    assert not wrong, f"{len(wrong)} messages from number {wrong[0]} on"  # pytest would compare long lists for minutes


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("(unreachable)", r"it gave up \(unreachable\)"),
        (ENDLESS, "more instructions than it may"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "divided by zero"),
        ("(drop (i32.load (i32.const -4)))", "memory that it does not have"),
        ("(call $deep)", "nested too deeply"),
        ("(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 1000000)) (br $l))", "than it may for one"),
        ("(loop $l (drop (memory.grow (i32.const 1))) (br $l))", "than it may for one"),
        ("(return (i32.const 7))", "returned 7"),
        ("(return (i32.const -1))", "returned -1"),
    ],
)
def test_failure_affects_one_message(sandbox: Sandbox, failure: str, reason: str) -> None:
    content = module(
        f"(if (i32.eq {FIRST_BYTE} (i32.const 102)) (then {failure})) (i32.const 1)", more="(func $deep (call $deep))"
    )
    verdicts = sandbox.load(content).run(messages(b"a", b"b", b"f", b"c", b"f"))
    assert verdicts.passes == [True, True, False, True, False]
    assert sorted(verdicts.failures) == [2, 4]
    assert re.search(reason, verdicts.failures[2]), verdicts.failures[2]


def test_message_fails_only_if_it_exceeds_the_budget_alone(sandbox: Sandbox) -> None:
    """Each of the messages needs nearly all fuel of one."""
    loop = """(local $n i32) (loop $l (local.set $n (i32.add (local.get $n) (i32.const 1)))
              (br_if $l (i32.lt_u (local.get $n) (i32.const 200000)))) (i32.const 1)"""
    verdicts = sandbox.load(module(loop)).run(messages(*[b"x"] * 20))
    assert verdicts.passes == [True] * 20
    assert not verdicts.failures


def test_memory_is_fresh_after_a_failure(sandbox: Sandbox) -> None:
    """It counts messages in its memory, and is let through while the count is small."""
    content = module(
        f"""(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
            (if (i32.eq {FIRST_BYTE} (i32.const 102)) (then (unreachable)))
            (i32.le_u (i32.load (i32.const 0)) (i32.const 2))"""
    )
    assert sandbox.load(content).run(messages(b"a", b"a", b"a", b"f", b"a")).passes == [True, True, False, False, True]


def test_time_ends_a_run_between_messages(sandbox: Sandbox) -> None:
    verdicts = sandbox.load(fails_at("f", ENDLESS)).run(messages(*[b"f"] * 1000), seconds_max=0.05)
    assert 1 <= len(verdicts.passes) < 1000
    assert not any(verdicts.passes)


def test_time_limit_stops_a_filter_within_its_fuel() -> None:
    """Nobody ticks but this test: so it is the clock."""
    impatient = Sandbox(WasmLimits(fuel_per_message=10**12, seconds_per_message=0.05))
    loaded = impatient.load(fails_at("f", ENDLESS))
    ended = threading.Event()

    def tick() -> None:
        while not ended.is_set():
            impatient.tick()
            time.sleep(EPOCH_SECONDS)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        verdicts = loaded.run(messages(b"f", b"a"))
    finally:
        ended.set()
        thread.join()
    assert verdicts.passes == [False, True]
    assert "took longer" in verdicts.failures[0]


def test_large_message_asks_for_more_room(sandbox: Sandbox) -> None:
    """This one has 64 KiB, and says so."""
    fits = "(i32.le_u (local.get $size) (i32.const 65536))"
    small = module("(i32.const 1)", allocate=f"(select (i32.const 65536) (i32.const 0) {fits})")
    verdicts = sandbox.load(small).run(messages(b"a", bytes(70_000), b"b"))
    assert verdicts.passes == [True, False, True]
    assert "no room for 131072 bytes" in verdicts.failures[1]
    assert sandbox.load(EVERYTHING).run(messages(bytes(70_000))).passes == [True]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unexpected end"),
        (b"(module)", "not a WebAssembly module"),
        (b"\0asm\1\0\0\0", "no memory"),
        (EVERYTHING[:-5], "not a WebAssembly module"),
        (module("(i32.const 1)", allocate="(i32.const 0)"), "gave no room"),
        (module("(i32.const 1)", allocate="(i32.const -5)"), "its memory has fewer bytes"),
        (module("(i32.const 1)", allocate="(unreachable)"), "gave up"),
        # Which limit it meets first depends on the machine.
        (module("(i32.const 1)", allocate=f"{ENDLESS} (unreachable)"), "more instructions|took longer"),
        (module("(i32.const 1)", more=f"(func $s {ENDLESS}) (start $s)"), "cannot be started"),
        (module("(i32.const 1)", pages=10_000), "exceeds memory limits"),
        (module("(i32.const 1)", more="(table 1000000 funcref)"), "cannot be started"),
        (
            bytes(wasmtime.wat2wasm('(module (import "env" "now" (func)) (memory (export "memory") 1))')),
            "imports env.now",
        ),
    ],
)
def test_unusable_modules_are_refused(sandbox: Sandbox, content: bytes, reason: str) -> None:
    with pytest.raises(ProgramInvalid, match=reason):
        sandbox.load(content)


@pytest.mark.parametrize(
    "more",
    [
        '(func (export "x") (param v128))',
        '(func (export "x") (param anyref))',
        '(func (export "x") (param exnref))',
        '(global (export "x") anyref (ref.null any))',
        '(type $s (struct (field i32))) (func (export "x") (param (ref null $s)))',
        '(type $s (func)) (func (export "x") (param (ref null $s)))',
        '(tag (export "x"))',
    ],
)
def test_types_that_would_abort_the_process_are_refused(sandbox: Sandbox, more: str) -> None:
    """wasmtime's C interface aborts when it is asked for the type of such an export."""
    with pytest.raises(ProgramInvalid, match="not a WebAssembly module that can be used"):
        sandbox.load(module("(i32.const 1)", more=more))


def test_invalid_modules_are_refused_or_fail_for_their_messages(sandbox: Sandbox) -> None:
    """Bytes of good modules are changed, left out and doubled: nothing but verdicts and refusals comes of it."""
    rng = random.Random(39)
    corpus = [
        begins_with("a"),
        fails_at("f"),
        fails_at("f", ENDLESS),
        module("(call $d) (i32.const 1)", more="(func $d)"),
    ]
    refused = ran = 0
    for _ in range(MUTANTS):
        content = bytearray(rng.choice(corpus))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(8, len(content))
            match rng.randrange(4):
                case 0:
                    content[at] = rng.randrange(256)
                case 1:
                    content[at] ^= 1 << rng.randrange(8)
                case 2:
                    del content[at]
                case _:
                    content[at:at] = content[at : at + rng.randrange(1, 8)]
        try:
            loaded = sandbox.load(bytes(content))
        except ProgramInvalid:
            refused += 1
            continue
        verdicts = loaded.run(messages(b"a", b"f", b""))
        assert len(verdicts.passes) == 3
        ran += 1
    assert refused > MUTANTS / 10, "hardly any module was broken"
    assert ran > MUTANTS / 50, "hardly any module could run"
