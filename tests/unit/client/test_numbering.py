"""What a numbered producer sends, and what it makes of the answers, on a cluster that does not remember numbers."""

from __future__ import annotations

import os
import random

import anyio
import pytest

from mq.client import Message, MessageRefused, NumberUsed, Producer, ProducerBusy, SendOutcomeUnknown, SendResult
from mq.client.produce.numbering import REMEMBERED_SENDS, numbering_of
from mq.protocol import properties as props
from mq.protocol.messages.sequencing import is_generated
from tests.support.producing import SEND, SEND_BATCH, producer_of
from tests.support.waiting import until
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio

Numbers = tuple[str | None, str | None]


def sent(cluster: FakeCluster) -> list[Numbers]:
    """Producer and number of each request that a broker has received, in any group."""
    found: list[Numbers] = []
    for group in cluster.groups.values():
        for broker in group.replicas:
            for request in broker.received:
                if request.code in (SEND, SEND_BATCH):
                    given = props.decode(request.ext["i"])
                    found.append((given.get(props.PRODUCER_ID), given.get(props.SEQUENCE)))
    return found


def numbers(cluster: FakeCluster) -> list[int]:
    return [int(number) for _, number in sent(cluster) if number is not None]


async def test_unnamed_producer_numbers_from_zero_under_a_new_id(cluster: FakeCluster) -> None:
    producer = producer_of(cluster, numbered=True)
    for _ in range(2):
        async with producer:
            for _ in range(3):
                await producer.send(Message("T", b"x"))
    names = [name for name, _ in sent(cluster)]
    assert numbers(cluster) == [0, 1, 2, 0, 1, 2]
    assert names[:3] == [names[0]] * 3
    assert names[3:] == [names[3]] * 3
    assert names[0] != names[3]
    assert all(is_generated(name or "") for name in names)


async def test_named_producer_continues_above_numbers_of_earlier_runs(cluster: FakeCluster) -> None:
    for _ in range(2):
        async with producer_of(cluster, numbered="billing-7") as producer:
            for _ in range(3):
                await producer.send(Message("T", b"x"))
    assert {name for name, _ in sent(cluster)} == {"billing-7"}
    assert len(set(numbers(cluster))) == 6
    assert numbers(cluster) == sorted(numbers(cluster))


async def test_producer_that_is_opened_again_does_not_repeat_a_number(cluster: FakeCluster) -> None:
    producer = producer_of(cluster, numbered="billing-7", first_number=500)
    for _ in range(2):
        async with producer:
            await producer.send(Message("T", b"x"))
    assert numbers(cluster) == [500, 501]


async def test_message_sent_twice_gets_two_numbers_and_is_unchanged() -> None:
    message = Message("T", b"x", properties={"colour": "red"})
    async with sending(numbered=True) as (cluster, producer):
        await producer.send(message)
        await producer.send(message)
        assert numbers(cluster) == [0, 1]
        assert message.properties == {"colour": "red"}


async def test_all_attempts_have_one_number_and_one_group() -> None:
    async with sending(groups=2, numbered=True, retries=5) as (cluster, producer):
        for group in cluster.groups.values():
            group.replicas[0].misdeeds = [Misdeed("hang_up", store=True), Misdeed("refuse", code=1), Misdeed("hang_up")]
        result = await producer.send(Message("T", b"x"))
        assert (result.attempts, result.maybe_duplicated) == (4, False)
        assert numbers(cluster) == [0, 0, 0, 0]
        asked = [group.replicas[0].count(SEND) for group in cluster.groups.values()]
        assert sorted(asked) == [0, 4]


async def test_own_numbers_keep_a_message_in_one_group() -> None:
    own = {props.PRODUCER_ID: "p", props.SEQUENCE: "9"}
    async with sending(groups=2) as (cluster, producer):
        for group in cluster.groups.values():
            group.replicas[0].misdeeds = [Misdeed("hang_up")]
        await producer.send(Message("T", b"x", properties=own))
        asked = [group.replicas[0].count(SEND) for group in cluster.groups.values()]
        assert sorted(asked) == [0, 2]
        assert sent(cluster) == [("p", "9")] * 2


async def test_group_that_certainly_has_not_the_message_is_left() -> None:
    async with sending(groups=2, numbered=True) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("refuse", code=16)] * 2
        results = [await producer.send(Message("T", b"x")) for _ in range(2)]
        assert [result.queue.broker_name for result in results] == ["b-1", "b-1"]
        assert {number for _, number in sent(cluster)} == {"0", "1"}


async def test_message_is_retried_only_at_its_possible_owner() -> None:
    async with sending(groups=2, numbered=True, timeout=1.0) as (cluster, producer):
        for group in cluster.groups.values():
            group.replicas[0].misdeeds = [Misdeed("hang_up", store=True), *[Misdeed("refuse", code=14)] * 1000]
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.stored == "unknown"
        assert 0 in [group.replicas[0].count(SEND) for group in cluster.groups.values()]


async def test_numbers_of_the_application_have_precedence() -> None:
    own = {props.PRODUCER_ID: "p", props.SEQUENCE: "9"}
    async with sending(numbered=True) as (cluster, producer):
        await producer.send(Message("T", b"x", properties=own))
        await producer.send_batch([Message("T", b"x")] * 3, properties=own)
        await producer.send(Message("T", b"x"))
        assert [number for _, number in sent(cluster)] == ["9", "9", "0"]


@pytest.mark.parametrize("half", [{props.PRODUCER_ID: "p"}, {props.SEQUENCE: "9"}])
async def test_half_of_the_numbers_is_refused_with_the_other_half(half: dict[str, str]) -> None:
    [other] = {props.PRODUCER_ID, props.SEQUENCE} - half.keys()
    async with sending(numbered=True) as (cluster, producer):
        with pytest.raises(MessageRefused, match=f"without {other}"):
            await producer.send(Message("T", b"x", properties=half))
        with pytest.raises(MessageRefused, match=f"without {other}"):
            await producer.send_batch([Message("T", b"x")], properties=half)
        assert sent(cluster) == []
        assert producer.in_flight == 0


async def test_numbers_inside_a_batch_are_refused() -> None:
    own = {props.PRODUCER_ID: "p", props.SEQUENCE: "9"}
    async with sending(numbered=True) as (_, producer):
        with pytest.raises(MessageRefused, match="in the properties of the batch"):
            await producer.send_batch([Message("T", b"x"), Message("T", b"x", properties=own)])


@pytest.mark.parametrize("is_batch", [False, True])
async def test_properties_leave_room_for_the_numbers(*, is_batch: bool) -> None:
    async def send(producer: Producer, size: int) -> None:
        message = Message("T", b"x", properties={"p": "v" * size})
        if is_batch:
            await producer.send_batch([message])
        else:
            await producer.send(message)

    size = props.SENT_PROPERTIES_BYTES_MAX - 60
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with producer_of(cluster) as producer:
            await send(producer, size)
        async with producer_of(cluster, numbered=True) as producer:
            with pytest.raises(MessageRefused, match="are for the number"):
                await send(producer, size)
            await send(producer, size - 100)


async def test_batch_takes_a_number_for_each_message() -> None:
    async with sending(numbered=True) as (cluster, producer):
        await producer.send_batch([Message("T", b"x")] * 5)
        await producer.send(Message("T", b"x"))
        assert numbers(cluster) == [0, 5]


async def test_automatic_batches_are_numbered_when_sent() -> None:
    async with sending(numbered=True, linger=0) as (cluster, producer):
        await producer.send(Message("T", b"x"))
        outcomes = await producer.send_many([Message("T", b"%d" % number) for number in range(20)])
        await producer.send(Message("T", b"x"))
        assert all(isinstance(each, SendResult) for each in outcomes)
        assert cluster.leader.count(SEND_BATCH) == 1
        assert numbers(cluster) == [0, 1, 21]


async def test_messages_of_a_refused_batch_get_new_single_numbers() -> None:
    async with sending(numbered=True, linger=0) as (cluster, producer):
        await producer.send(Message("T", b"x"))
        cluster.leader.misdeeds = [Misdeed("refuse", code=13, remark="no numbered batches")]
        outcomes = await producer.send_many([Message("T", b"%d" % number) for number in range(3)])
        assert all(isinstance(each, SendResult) for each in outcomes)
        assert numbers(cluster) == [0, 1, 4, 5, 6]


async def test_oneway_send_has_no_number() -> None:
    async with sending(numbered=True) as (cluster, producer):
        await producer.send_oneway(Message("T", b"x"))
        await until(lambda: cluster.leader.count(SEND) == 1)
        assert sent(cluster) == [(None, None)]


FORGOTTEN = Misdeed("refuse", code=13, remark="SEQUENCE_FORGOTTEN: the broker does not know")


async def test_number_used_error_names_the_remedy() -> None:
    async with sending(numbered="billing-7") as (cluster, producer):
        cluster.leader.misdeeds = [FORGOTTEN]
        with pytest.raises(NumberUsed, match="give the producer another id") as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.stored == "no"


async def test_batch_with_used_numbers_is_not_resent_as_single_messages() -> None:
    async with sending(numbered=True, linger=0) as (cluster, producer):
        await producer.send(Message("T", b"x"))
        cluster.leader.misdeeds = [FORGOTTEN]
        outcomes = await producer.send_many([Message("T", b"x")] * 3)
        assert [type(each) for each in outcomes] == [NumberUsed] * 3
        assert cluster.leader.count(SEND) == 1


async def test_forgotten_number_after_an_unknown_outcome_stays_unknown() -> None:
    async with sending(numbered=True) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True), FORGOTTEN]
        with pytest.raises(SendOutcomeUnknown, match="no longer knows") as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.stored == "unknown"
        assert len(cluster.group.queues["T", 0]) == 1


async def test_sends_wait_for_the_outcome_of_an_old_send() -> None:
    with anyio.CancelScope() as leaving:
        async with sending(numbered=True) as (cluster, producer):
            cluster.leader.misdeeds = [Misdeed("silence")]
            producer.send_nowait(Message("T", b"not answered"), lambda _: None)
            await until(lambda: not cluster.leader.misdeeds)
            for _ in range(REMEMBERED_SENDS - 1):
                await producer.send(Message("T", b"x"))
            assert producer.in_flight == 1
            with pytest.raises(ProducerBusy):
                producer.send_nowait(Message("T", b"x"), lambda _: None)
            with anyio.move_on_after(0.2):
                await producer.send(Message("T", b"x"))
            assert len(cluster.group.queues["T", 0]) == REMEMBERED_SENDS - 1
            leaving.cancel()


async def test_sends_continue_after_the_oldest_one_ends() -> None:
    outcomes: list[object] = []
    async with sending(numbered=True, in_flight_max=10, attempt_timeout=1.0) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("silence")]
        producer.send_nowait(Message("T", b"answered late"), outcomes.append)
        await until(lambda: not cluster.leader.misdeeds)
        for _ in range(30):
            await producer.send(Message("T", b"x"))
        [late] = outcomes
        assert isinstance(late, SendResult)
        assert numbers(cluster)[:11] == [*range(10), 0]


@pytest.mark.parametrize(
    ("numbered", "first", "in_flight_max", "complaint"),
    [
        ("", None, 1024, "printable characters"),
        ("x" * 65, None, 1024, "printable characters"),
        ("a\x01b", None, 1024, "printable characters"),
        ("\ud800", None, 1024, "printable characters"),
        ("~billing", None, 1024, "reserved for generated ids"),
        (False, 5, 1024, "needs numbered=True"),
        (True, -1, 1024, "allowed: 0 to"),
        (True, 2**62 + 1, 1024, "allowed: 0 to"),
        (True, None, 1025, "maximum for numbered messages: 1024"),
    ],
)
def test_impossible_numberings_are_refused(
    numbered: bool | str,
    first: int | None,
    in_flight_max: int,
    complaint: str,
) -> None:
    with pytest.raises(ValueError, match=complaint):
        numbering_of(numbered, first, in_flight_max)


@pytest.mark.parametrize("numbered", [1, None, b"billing", ["a"]])
def test_producer_id_must_be_a_text(numbered: object) -> None:
    with pytest.raises(TypeError, match="True, False or a producer id"):
        Producer("127.0.0.1:9876", numbered=numbered)  # type: ignore[arg-type]


def test_forked_process_does_not_take_over_a_producer_id() -> None:
    named = numbering_of("billing-7", None, 1024)
    unnamed = numbering_of(True, None, 1024)
    assert named is not None
    assert unnamed is not None
    child = os.fork()
    if not child:
        unnamed.begin(random.Random(1))
        try:
            named.begin(random.Random(1))
        except ValueError as error:
            os._exit(7 if "make a producer in each process" in str(error) and unnamed.producer_id else 1)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
