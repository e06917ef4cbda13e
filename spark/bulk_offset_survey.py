"""Surveys topics with raftmq's own requests: one response describes all queues of a topic, or the ends of many topics.

Planning uses followers, so that it costs the leader one small request at most. With consistency *latest* the first
replica gets the commit position from its leader; with *committed* all followers report their ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, Literal, NamedTuple

from mq.protocol.bulk import BulkError, decode_plan
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.topic_ends import ENDS_TOPICS_MAX, decode_ends, encode_topics
from spark.client import BrokerResponse, Connection, ServerError, TopicRoute, Unreachable
from spark.offset_survey import LEADER_ID, Survey, Surveyor
from spark.option_table import QueueName
from spark.options import ReadOptions, Subscription
from spark.plan import ArchiveClaim, ArchivedLog, PlanInvalid, QueueEnds

Consistency = Literal["latest", "committed", "latest-if-possible"]

_PAGES_MAX: Final = 64
_NOTHING: Final = QueueEnds(0, 0)


class TopicPlan(NamedTuple):
    """The queues of a topic on one replica. ``places`` has the queue offsets at the start of each of its log files.

    ``queues`` are by queue id, from 0 on; ``positions`` are those starts, after the start of the whole log. ``archive``
    is the broker group's, if it has one.
    """

    identity: str
    queues: list[QueueEnds]
    places: list[dict[int, int]]
    positions: list[int]
    archive: ArchivedLog | None = None


class BulkSurveyor(Surveyor):
    """Queries name servers, and asks raftmq brokers with planning requests.

    Args:
        namesrv, timeout, connect: see `Surveyor`.
        consistency: ``latest`` is everything that was acknowledged before; ``latest-if-possible`` is ``committed``
            where there is no leader.
        detail: whether every survey is detailed, for which the broker reads from its queue files.
        proves_archives: whether details must be those of a replica that the leader has confirmed to be up to date,
            because messages are read from the archive that it names.
    """

    def __init__(
        self,
        namesrv: Sequence[str],
        timeout: float,
        connect: Callable[[str, float], Connection] = Connection,
        *,
        consistency: Consistency,
        detail: bool,
        proves_archives: bool = False,
    ) -> None:
        super().__init__(namesrv, timeout, connect)
        self._consistency = consistency
        self._proves_archives = proves_archives
        self._detail = detail
        self._plans: dict[tuple[str, str], TopicPlan] = {}

    def survey(self, subscription: Subscription, *, strict: bool = True, previous: Survey | None = None) -> Survey:
        """Survey as `Surveyor.survey`, but with topic identities, and with places if details are requested.

        Raises also PlanInvalid if the brokers are not raftmq's.
        """
        self._plans = {}
        offsets = super().survey(subscription, strict=strict, previous=previous)
        return offsets._replace(
            identities={key: plan.identity for key, plan in self._plans.items()},
            places={key: plan.places for key, plan in self._plans.items()},
            positions={key: plan.positions for key, plan in self._plans.items()},
            archives={key: plan.archive for key, plan in self._plans.items() if plan.archive is not None},
        )

    def add_details(self, survey: Survey) -> Survey:
        """Add details from any replica that responds. They may be slightly older or newer than the survey.

        Where archives are read: from a replica that is up to date, or else from the one with the newest archive, and
        with the others' claims of it.
        """
        groups: dict[str, dict[str, str]] = {}
        for (topic, broker_name), identity in survey.identities.items():
            groups.setdefault(broker_name, {})[topic] = identity
        ends, places, positions = dict(survey.ends), dict(survey.places), dict(survey.positions)
        archives: dict[tuple[str, str], ArchivedLog | None] = {} if self._proves_archives else dict(survey.archives)
        claims: dict[tuple[str, str], list[ArchiveClaim]] = {}
        for broker_name, identities in groups.items():
            addresses = survey.routes[next(iter(identities))].addresses.get(broker_name, {})
            plans, unproven = self._details_of(_order(addresses), identities)
            claims |= {(topic, broker_name): plan for topic, plan in unproven.items()}
            for topic, plan in plans.items():
                places[topic, broker_name] = plan.places
                positions[topic, broker_name] = plan.positions
                archives[topic, broker_name] = plan.archive
                for queue_id, row in enumerate(plan.queues):
                    queue_ends = ends.get((topic, broker_name, queue_id))
                    if queue_ends is not None and row.end > row.first:
                        nbytes = row.nbytes * (queue_ends.end - queue_ends.first) // (row.end - row.first)
                        ends[topic, broker_name, queue_id] = queue_ends._replace(nbytes=nbytes)
        return survey._replace(ends=ends, places=places, positions=positions, archives=archives, claims=claims)

    def _details_of(
        self, order: list[str], identities: Mapping[str, str]
    ) -> tuple[dict[str, TopicPlan], dict[str, list[ArchiveClaim]]]:
        """The plans of a broker group's topics with these identities, as far as replicas answer; and other claims of
        their archives, where the leader could confirm no replica.
        """
        plans: dict[str, TopicPlan] = {}
        for _, topic_plans in self._answers(order, identities, plans, current=self._proves_archives):
            plans |= topic_plans
        claims: dict[str, list[ArchiveClaim]] = {}
        unanswered = {topic: identity for topic, identity in identities.items() if topic not in plans}
        if self._proves_archives and unanswered:
            for address, topic_plans in self._answers(order, unanswered, {}, current=False):
                for topic, plan in topic_plans.items():
                    if plan.archive is not None:
                        claims.setdefault(topic, []).append(ArchiveClaim(address, plan.archive))
                    if topic not in plans or _archived_index(plans[topic]) < _archived_index(plan):
                        plans[topic] = plan
        return plans, claims

    def _answers(
        self, order: list[str], identities: Mapping[str, str], all_plans: Mapping[str, TopicPlan], *, current: bool
    ) -> Iterator[tuple[str, dict[str, TopicPlan]]]:
        """Ask one replica after the other about the topics that ``all_plans`` lacks by then; yields the answers."""
        for address in order:
            if not (topics := [topic for topic in identities if topic not in all_plans]):
                return
            try:
                plans = self._ask_replica(address, topics, current=current, detail=True)
            except (Unreachable, ServerError):
                continue
            yield address, {topic: plan for topic, plan in plans.items() if plan.identity == identities[topic]}

    def _ends(self, routes: Mapping[str, TopicRoute], queues: Sequence[QueueName]) -> dict[QueueName, QueueEnds]:
        topics: dict[str, dict[str, None]] = {}
        for topic, broker_name, _ in queues:
            topics.setdefault(broker_name, {})[topic] = None
        for broker_name, members in topics.items():
            addresses = routes[next(iter(members))].addresses.get(broker_name, {})
            for topic, plan in self._plans_of(broker_name, addresses, list(members)).items():
                self._plans[topic, broker_name] = plan
        ends: dict[QueueName, QueueEnds] = {}
        for queue in queues:
            topic, broker_name, queue_id = queue
            queue_plans = self._plans[topic, broker_name].queues
            ends[queue] = queue_plans[queue_id] if queue_id < len(queue_plans) else _NOTHING
        return ends

    def _plans_of(self, broker_name: str, addresses: Mapping[int, str], topics: list[str]) -> dict[str, TopicPlan]:
        order = _order(addresses)
        failures: list[str] = []
        if self._consistency != "committed":
            for address in order:
                try:
                    return self._ask_replica(address, topics, current=True)
                except (Unreachable, ServerError) as error:
                    failures.append(str(error))
            if self._consistency == "latest":
                raise Unreachable(broker_name, f"no replica knows what is committed ({'; '.join(failures)})")
        followers = order if len(order) == 1 else order[: len(order) - (LEADER_ID in addresses)]
        plans: dict[str, TopicPlan] = {}
        for address in [*followers, *[each for each in order if each not in followers]]:
            if plans and address not in followers:
                break
            try:
                for topic, plan in self._ask_replica(address, topics, current=False).items():
                    plans[topic] = _join_plans(plans[topic], plan) if topic in plans else plan
            except (Unreachable, ServerError) as error:
                failures.append(str(error))
        if not plans:
            raise Unreachable(broker_name, f"no replica can be reached ({'; '.join(failures) or 'none is known'})")
        if failures and self._consistency != "committed":
            logging.getLogger(__name__).warning(
                "broker group %s has no leader to confirm the latest acknowledged messages: reading what its followers "
                "know to be committed (%s)",
                broker_name,
                "; ".join(failures),
            )
        return plans

    def _ask_replica(
        self, address: str, topics: list[str], *, current: bool, detail: bool = False
    ) -> dict[str, TopicPlan]:
        """Return a replica's queue ends of ``topics``. Raises Unreachable, ServerError, PlanInvalid."""
        connection = self._connect(address, self._timeout)
        try:
            detail = detail or self._detail
            if not detail and (plans := _ask_ends(connection, topics, current=current)) is not None:
                return plans
            return {topic: self._ask_topic(connection, topic, current=current, detail=detail) for topic in topics}
        finally:
            connection.close()

    def _ask_topic(self, connection: Connection, topic: str, *, current: bool, detail: bool) -> TopicPlan:
        identity = ""
        rows: list[QueueEnds] = []
        places: dict[int, dict[int, int]] = {}
        first = base = 0
        archive: ArchivedLog | None = None
        for page in range(_PAGES_MAX):
            fields = {
                "topic": topic,
                "firstQueue": str(first),
                "detail": "true" if detail else "false",
                "current": "true" if current and not page else "false",
            }
            opaque = connection.send(RequestCode.PLAN_TOPIC, fields)
            response = _check_response(connection.address, connection.receive(opaque))
            try:
                queues, found_places = decode_plan(response.body)
                first, identity = int(response.ext["nextQueue"]), response.ext["topicIdentity"]
                base = int(response.ext["basePosition"])
                archive = _archive(response.ext)
            except (BulkError, KeyError, ValueError) as error:
                raise Unreachable(connection.address, f"answered a plan that cannot be read: {error}") from error
            rows += [QueueEnds(row.first, row.end, row.nbytes) for row in queues]
            for place in found_places:
                offsets = places.setdefault(place.position, {})
                offsets |= {row.queue_id: offset for row, offset in zip(queues, place.offsets, strict=True)}
            if first < 0:
                break
        # Pages of a topic with many queues may have different places: only those in all pages are used.
        whole = {position: offsets for position, offsets in sorted(places.items()) if len(offsets) == len(rows)}
        return TopicPlan(identity, rows, list(whole.values()), [base, *whole], archive)


def surveyor_of(
    options: ReadOptions,
    connect: Callable[[str, float], Connection] = Connection,
    *,
    detail: bool,
    otherwise: Consistency,
) -> Surveyor:
    """Return the surveyor for the read mode in the options. ``otherwise`` is the default consistency."""
    timeout = options.fetch_timeout_ms / 1000
    if options.read_mode == "pull":
        return Surveyor(options.namesrv, timeout, connect)
    consistency = options.read_consistency or otherwise
    proves_archives = options.read_mode == "archive"
    return BulkSurveyor(
        options.namesrv, timeout, connect, consistency=consistency, detail=detail, proves_archives=proves_archives
    )


def _ask_ends(connection: Connection, topics: list[str], *, current: bool) -> dict[str, TopicPlan] | None:
    """The ends of topics, at most `ENDS_TOPICS_MAX` per request; None if the replica does not support the request.

    Raises Unreachable, ServerError.
    """
    plans: dict[str, TopicPlan] = {}
    while len(plans) < len(topics):
        rest = topics[len(plans) : len(plans) + ENDS_TOPICS_MAX]
        fields = {"current": "true" if current and not plans else "false"}
        response = connection.receive(connection.send(RequestCode.ASK_TOPIC_ENDS, fields, encode_topics(rest)))
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        try:
            ends_of_topics = decode_ends(_check_response(connection.address, response).body)
        except BulkError as error:
            raise Unreachable(connection.address, f"answered ends that cannot be read: {error}") from error
        if not 1 <= len(ends_of_topics) <= len(rest):
            raise Unreachable(
                connection.address, f"told the ends of {len(ends_of_topics)} topics, asked for {len(rest)}"
            )
        for topic, each in zip(rest, ends_of_topics, strict=False):
            plans[topic] = TopicPlan(each.identity, list(map(QueueEnds, each.firsts, each.ends)), [], [])
    return plans


def _archive(ext: Mapping[str, str]) -> ArchivedLog | None:
    """The archive that a plan names. Raises KeyError, ValueError."""
    if "archiveUrl" not in ext:
        return None
    index, term, pos, chain = (int(ext[f"archive{name}"]) for name in ("Index", "Term", "Position", "Chain"))
    return ArchivedLog(
        ext["archiveUrl"],
        ext.get("archiveEndpointUrl"),
        ext["logIdentity"],
        int(ext["segmentBytes"]),
        (index, term, pos, chain),
    )


def _archived_index(plan: TopicPlan) -> int:
    """The last entry that a replica knows to be archived; -1 if it knows of no archive."""
    return -1 if plan.archive is None else plan.archive.end[0]


def _order(addresses: Mapping[int, str]) -> list[str]:
    """The replicas of a broker group in the order to try: the leader last."""
    return [addresses[number] for number in sorted(addresses, key=lambda number: (number == LEADER_ID, number))]


def _check_response(address: str, response: BrokerResponse) -> BrokerResponse:
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise PlanInvalid(
            f"{address} knows no planning requests: the brokers of Apache RocketMQ are read with readMode=pull"
        )
    if response.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY):
        raise Unreachable(address, response.remark)
    if response.code != ResponseCode.SUCCESS:
        raise ServerError(address, response.code, response.remark)
    return response


def _join_plans(one: TopicPlan, other: TopicPlan) -> TopicPlan:
    """Join the views of two replicas: committed is what either has, and deleted is what either lacks."""
    if one.identity != other.identity:
        # One of them has not yet applied that the topic was recreated; the identity starts with the number of the
        # change.
        return max(one, other, key=lambda plan: (_change(plan.identity), plan.identity))
    rows = one.queues
    if rows != other.queues:
        both = zip_longest(one.queues, other.queues, fillvalue=_NOTHING)
        rows = [QueueEnds(*map(max, row, also)) for row, also in both]
    larger = max(one, other, key=lambda plan: len(plan.places))
    return TopicPlan(one.identity, rows, larger.places, larger.positions, larger.archive)


def _change(identity: str) -> int:
    number = identity.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0
