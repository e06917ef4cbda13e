"""The options: what each says, and what a user is told who gets one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.option_table import EARLIEST, LATEST, OPTIONS, AtOffsets, AtTime, AtTimes, markdown_table, with_table
from spark.options import OptionInvalid, Pattern, Queues, Topics, parse_read_options, parse_write_options

NEEDED = {"namesrv": "127.0.0.1:9876", "subscribe": "Orders"}


def test_defaults_of_a_batch_and_a_stream() -> None:
    batch = parse_read_options(NEEDED, "batch")
    stream = parse_read_options(NEEDED, "stream")

    assert (batch.namesrv, batch.subscription) == (("127.0.0.1:9876",), Topics(("Orders",)))
    assert (batch.start, batch.end) == ("earliest", "latest")
    assert stream.start == "latest"
    assert "body" in batch.columns
    assert "physical_offset" not in batch.columns
    assert (batch.fetch_bytes, batch.fetch_timeout_ms, batch.read_deadline_ms) == (4 << 20, 10_000, 120_000)
    assert (batch.fail_on_data_loss, batch.on_bad_body) == (True, "fail")


def test_names_are_case_insensitive_and_have_aliases() -> None:
    for name in ("NAMESRV", "bootstrap.servers", "nameServer", "nameserver"):
        assert parse_read_options({name: "a:1; b:2,[::1]:3", "SUBSCRIBE": "x , y"}, "batch").namesrv == (
            "a:1",
            "b:2",
            "[::1]:3",
        )
    assert parse_read_options({"namesrv": "a:1", "topic": "T"}, "batch").subscription == Topics(("T",))


def test_reader_accepts_patterns_and_assigned_queues() -> None:
    rest = {"namesrv": "a:1"}
    assert parse_read_options({**rest, "subscribePattern": "ord.*"}, "batch").subscription == Pattern("ord.*")
    assigned = parse_read_options({**rest, "assign": '{"T": ["broker-a:0", "b:c:12"]}'}, "batch").subscription
    assert assigned == Queues(frozenset({("T", "broker-a", 0), ("T", "b:c", 12)}))


def test_starting_and_ending_offsets_are_parsed() -> None:
    def read(**options: str) -> tuple[object, object]:
        found = parse_read_options({**NEEDED, **options}, "batch")
        return found.start, found.end

    assert read(startingOffsets="LATEST") == ("latest", "latest")
    assert read(startingOffsets='{"T": {"a:0": -2, "a:1": 5}}', endingOffsets='{"T": {"a:0": -1}}') == (
        AtOffsets({("T", "a", 0): EARLIEST, ("T", "a", 1): 5}),
        AtOffsets({("T", "a", 0): LATEST}),
    )
    assert read(startingTimestamp="17", endingTimestamp="18") == (AtTime(17), AtTime(18))
    assert read(startingOffsetsByTimestamp='{"T": {"a:0": 5}}') == (AtTimes({("T", "a", 0): 5}), "latest")


def test_sizes_and_times_take_units() -> None:
    found = parse_read_options(
        {**NEEDED, "fetchBytes": "1m", "maxBytesPerTrigger": "2G", "maxTriggerDelay": "1.5h", "fetchTimeout": "250"},
        "stream",
    )
    assert (found.fetch_bytes, found.max_bytes_per_trigger) == (1 << 20, 2 << 30)
    assert (found.max_trigger_delay_ms, found.fetch_timeout_ms) == (5_400_000, 250)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "T"}, "option namesrv is missing"),
        ({"namesrv": "a:1"}, "one of the options subscribe, subscribePattern and assign is needed"),
        ({**NEEDED, "subscribePattern": "x"}, "subscribe and subscribePattern exclude each other"),
        ({**NEEDED, "bootstrap.servers": "b:1"}, "namesrv and bootstrap.servers are the same option"),
        (
            {**NEEDED, "startingoffset": "latest"},
            "there is no option 'startingoffset'; did you mean 'startingOffsets'",
        ),
        ({**NEEDED, "zzzzzz": "1"}, "there is no option 'zzzzzz'$"),
        ({**NEEDED, "maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger is for stream, not for batch"),
        ({**NEEDED, "compression": "lz4"}, "option compression is for sink, not for batch"),
        ({**NEEDED, "namesrv": "a"}, "namesrv has 'a': expected HOST:PORT"),
        ({**NEEDED, "namesrv": "a:70000"}, "namesrv has 'a:70000': expected HOST:PORT"),
        ({**NEEDED, "namesrv": " "}, "namesrv must not be empty"),
        ({**NEEDED, "subscribe": "A,B,A"}, "subscribe names A twice"),
        ({"namesrv": "a:1", "subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"namesrv": "a:1", "assign": "[1]"}, "assign is not a JSON object"),
        ({"namesrv": "a:1", "assign": "{"}, "assign is not JSON"),
        ({"namesrv": "a:1", "assign": '{"T": ["0"]}'}, 'has "0" as a queue of T; one is written as "broker-a:0"'),
        ({"namesrv": "a:1", "assign": '{"T": []}'}, "assign has no list of queues for topic 'T'"),
        ({**NEEDED, "endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({**NEEDED, "endingOffsets": '{"T": {"a:0": -2}}'}, "cannot be -2 .earliest., as for T a:0"),
        ({**NEEDED, "startingOffsets": '{"T": {"a:0": -3}}'}, "has -3 as the offset of T a:0"),
        ({**NEEDED, "startingOffsets": '{"T": {"a:0": "5"}}'}, 'has "5" as the offset of T a:0'),
        ({**NEEDED, "startingOffsets": '{"T": 5}'}, "has no object of queues for topic 'T'"),
        (
            {**NEEDED, "startingTimestamp": "5", "startingOffsets": "latest"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        ({**NEEDED, "startingTimestamp": "-5"}, "startingTimestamp must be at least 0; it is '-5'"),
        ({**NEEDED, "startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number"),
        ({**NEEDED, "columns": "body,ofset"}, "the unknown column 'ofset'; did you mean 'queue_offset'"),
        ({**NEEDED, "fetchBytes": "1k"}, "fetchBytes must be 65536 to 8388608 bytes"),
        ({**NEEDED, "fetchBytes": "many"}, "fetchBytes must be a number of bytes or a size"),
        ({**NEEDED, "fetchTimeout": "soon"}, "fetchTimeout must be a number of milliseconds or a time"),
        ({**NEEDED, "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({**NEEDED, "onBadBody": "drop"}, "onBadBody must be one of fail, keep"),
    ],
)
def test_mistake_is_reported_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionInvalid, match=told):
        parse_read_options(options, "batch")


def test_options_of_spark_itself_are_ignored() -> None:
    assert parse_read_options({**NEEDED, "path": "x"}, "batch").subscription == Topics(("Orders",))


def test_sink_options_are_parsed() -> None:
    found = parse_write_options(
        {"namesrv": "a:1", "topic": "Out", "compression": "ZSTD", "txnAppId": "job", "txnVersion": "7"}
    )
    assert (found.topic, found.compression, found.txn_app_id, found.txn_version) == ("Out", "zstd", "job", 7)
    with pytest.raises(OptionInvalid, match="txnAppId and txnVersion are needed together"):
        parse_write_options({"namesrv": "a:1", "txnAppId": "job"})
    assert parse_write_options({"namesrv": "a:1"}).write_deadline_ms == 120_000
    with pytest.raises(OptionInvalid, match="txnVersion must be at most 2147483647"):
        parse_write_options({"namesrv": "a:1", "txnAppId": "job", "txnVersion": str(2**31)})
    with pytest.raises(OptionInvalid, match="subscribe is for batch and stream, not for sink"):
        parse_write_options(NEEDED)


def test_written_stream_may_have_a_name_and_a_checkpoint() -> None:
    written = {"namesrv": "a:1", "topic": "Out"}
    assert parse_write_options({**written, "checkpointlocation": "x", "queryname": "copy"}) == parse_write_options(
        written
    )


def test_table_names_every_option_once() -> None:
    lines = list(markdown_table())[2:]
    assert [line.split("`")[1] for line in lines] == [option.name for option in OPTIONS]
    assert all(line.count(" | ") == 3 for line in lines)


def test_guide_has_the_table_of_all_options() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()

    assert guide == with_table(guide), "run: python -m spark.option_table"
    assert all(f"| `{option.name}`" in guide for option in OPTIONS)


def test_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- options"):
        with_table("# Options\n")


def test_account_in_a_url_is_refused_and_not_shown() -> None:
    for url in ("http://shop:h1dden@minio:9000", "http://h1dden@minio:9000", "ftp://shop:h1dden@minio"):
        with pytest.raises(OptionInvalid, match="archiveEndpointUrl") as caught:
            parse_read_options({**NEEDED, "readMode": "archive", "archiveEndpointUrl": url}, "batch")
        assert "h1dden" not in str(caught.value)
