"""Executes one run: servers, clients, faults, final reads, verdict. All files are in the directory of the run."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import trio

from chaos.planted.__main__ import is_of_clients, plant
from checkers.events import FORMAT
from checkers.servers import errors_in
from jepsen.clients import java_missing, java_program, sdk_programs
from jepsen.deployments import open_network
from jepsen.deployments.closed_senders import end_closed_senders
from jepsen.deployments.cluster import ROOT, Cluster, ClusterFailed, NotRecovered, node_names, open_cluster
from jepsen.deployments.disks import OWN_DISK, open_disks
from jepsen.deployments.earlier import check_out_earlier
from jepsen.deployments.leftovers import lock_directory, remove_leftovers
from jepsen.deployments.netns import OUTSIDE
from jepsen.deployments.network import NAME_SERVERS
from jepsen.deployments.object_storage import BUCKET, ENVIRONMENT, open_object_storage
from jepsen.deployments.operators import verify_log
from jepsen.deployments.security import secure_clients
from jepsen.deployments.shim import open_shims
from jepsen.final_reads import read_replicas
from jepsen.logs import LogVerification, differences
from jepsen.nemeses import heal, run_schedule
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.needs import needs
from jepsen.nemeses.stores import PREFIX
from jepsen.openchaos import kinds_of
from jepsen.recorder import Recorder
from jepsen.report.rare_states import count_states
from jepsen.scenarios import SCENARIOS, play
from jepsen.schedule import KINDS, draw
from jepsen.send_paths import SendPathCounts
from jepsen.skew import ClockSkews
from jepsen.workloads import WORKLOADS
from jepsen.workloads.queue import GROUP, QueueWorkload
from jepsen.workloads.workload import QUEUES, Workload
from mq.cli.errors import lone_errors
from mq.client import Admin, ClientError
from mq.local_cluster import HOST
from mq.local_cluster.any_disk import ANY_DISK

HISTORY = "history.jsonl"
CALM_SECONDS = 2.0
"""Before the first fault and after the last one."""
QUICK_CALM_SECONDS = 0.5
PROGRESS_SECONDS = 5.0
STOP_SENDING_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. ``seconds``: the time for faults; healing and final reads need more."""

    workload: str
    nemeses: tuple[str, ...]
    seconds: float
    seed: int
    backend: str
    planted: str = ""
    """A bug planted in the brokers' code, by its name in chaos/planted; empty for none."""
    scenario: str = ""
    """The name of a scenario, instead of random faults; empty for none."""
    quick: bool = False
    """Many short faults with short rests between them."""
    security: str = ""
    """Accounts, TLS or both, see `jepsen.deployments.security`; empty for neither."""
    openchaos: tuple[str, ...] = ()
    """OpenChaos's names for the faults of these kinds, which limit their variants."""

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        nemeses = f"--openchaos {','.join(self.openchaos)}" if self.openchaos else f"--nemesis {','.join(self.nemeses)}"
        workload = f"--workload {self.workload}"
        what = f"scenario {self.scenario} {workload}" if self.scenario else f"run {workload} {nemeses}"
        options = [" --quick"] if self.quick else []
        options += [f" --planted {self.planted}"] if self.planted else []
        options += [f" --security {self.security}"] if self.security else []
        return f"raftmq-jepsen {what} --time {self.seconds:g} --seed {self.seed} --backend {self.backend}" + "".join(
            options
        )


def new_directory(store: Path, plan: Plan, began: str) -> Path:
    """Make the directory of a run that began at the given time. Raises OSError."""
    stem = f"{began}-{plan.workload}-{plan.scenario or '+'.join(plan.nemeses)}"
    store = store.resolve()
    store.mkdir(parents=True, exist_ok=True)
    for number in range(100):
        directory = store / (stem if not number else f"{stem}-{number}")
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory
    raise FileExistsError(f"{store / stem} exists a hundred times")


async def carry_out(plan: Plan, directory: Path, say: Callable[[str], None], *, began: str) -> None:
    """Execute the plan. Afterwards the history is in ``directory``; it is complete unless this raises.

    ``began`` is the wall clock's time, for the report; ``say`` is called with progress.

    Raises PatchFailed if the planted bug does not fit the code, ClusterFailed, ClientError, OSError,
    subprocess.CalledProcessError, and the errors of the back end.
    """
    workload_class = WORKLOADS[plan.workload]
    source = ROOT
    if plan.planted and not is_of_clients(plan.planted):  # bugs in clients run from a copy
        source = directory / "planted"
        await trio.to_thread.run_sync(plant, plan.planted, source)
    scenario = SCENARIOS[plan.scenario] if plan.scenario else None
    deployment = needs(plan.nemeses, brokers=scenario.brokers if scenario is not None else 3)
    earlier = None
    if scenario is not None and scenario.from_earlier:
        earlier = directory / "earlier"
        say(f"brokers start with the earlier release, {await check_out_earlier(earlier)}")
    for each in remove_leftovers():
        say(f"removed what a run that is gone left: {each}")
    async with lone_errors(), AsyncExitStack() as stack:
        stack.enter_context(lock_directory(directory))
        recorder = stack.enter_context(Recorder(directory / HISTORY, time.monotonic_ns))
        names = node_names(deployment.count + deployment.spares)
        nodes, spares = names[: deployment.count], names[deployment.count :]
        network = await stack.enter_async_context(open_network(plan.backend, len(names), switched=deployment.switch))
        disks = await stack.enter_async_context(open_disks(directory, names)) if deployment.disks else {}
        shims = await stack.enter_async_context(open_shims(directory, names)) if deployment.shims else {}
        storage = None
        if workload_class.has_store:
            os.environ.update(ENVIRONMENT)  # brokers are started from here
            own = OUTSIDE if plan.backend == "netns" else HOST
            storage = await stack.enter_async_context(open_object_storage(directory / "store", own))
        hosts = sorted({network.clients_reach(name)[0] for name in (*names, *NAME_SERVERS)})
        security = stack.enter_context(secure_clients(plan.security, directory, hosts))
        servers = f"{len(NAME_SERVERS)} name servers and {len(nodes)} brokers ({plan.backend})"
        say(f"starting {servers}; logs are in {directory / 'logs'}")
        async with open_cluster(
            directory,
            network,
            nodes,
            spares=spares,
            settings={
                **(OWN_DISK if disks else ANY_DISK),
                **workload_class.settings,
                **deployment.settings,
                **(scenario.settings if scenario is not None else {}),
                **security,
                **({} if storage is None else archive_settings(storage.url)),
            },
            source=source,
            disks=disks,
            shims=shims,
            earlier=earlier,
        ) as cluster:
            cluster.storage = storage
            workload = workload_class(cluster, recorder, random.Random(f"{plan.seed} clients"))
            await _create_topic(cluster, workload.topic, workload.topic_attributes)
            if isinstance(workload, QueueWorkload) and not workload.exclusive:
                workload.programs = await trio.to_thread.run_sync(_programs, plan, cluster, workload.topic, say)
            recorder.note("begin", v={**_describe(plan, cluster, workload), "began": began})
            try:
                await _run_with(plan, cluster, recorder, workload, say)
            except* NotRecovered as error:
                recorder.note("not-recovered", err=str(_first_error(error)))
                raise
        await _look_at_what_is_left(cluster, recorder)
        recorder.note("end")


async def _run_with(
    plan: Plan, cluster: Cluster, recorder: Recorder, workload: Workload, say: Callable[[str], None]
) -> None:
    injection = Injection(cluster, recorder, random.Random(f"{plan.seed} targets"), say)
    calm_seconds = QUICK_CALM_SECONDS if plan.quick else CALM_SECONDS
    memory: Counter[str] = Counter()
    paths = SendPathCounts()
    async with trio.open_nursery() as watchers:
        watchers.start_soon(_watch, cluster, recorder, memory, paths)
        watchers.start_soon(_tell_progress, workload, say)
        watchers.start_soon(workload.consume)
        async with trio.open_nursery() as producers:
            producers.start_soon(workload.produce)
            await trio.sleep(calm_seconds)
            until = trio.current_time() + plan.seconds
            if plan.scenario:
                await play(injection, SCENARIOS[plan.scenario], plan.seconds)
            else:
                steps = draw(
                    random.Random(plan.seed),
                    plan.nemeses,
                    plan.seconds,
                    quick=plan.quick,
                    kinds={**KINDS, **kinds_of(plan.openchaos)},
                )
                await run_schedule(injection, steps, plan.seconds)
            await trio.sleep_until(until)
            say("healing")
            await heal(cluster)
            await cluster.leader()
            await trio.sleep(calm_seconds)
            workload.stopping.set()
            producers.cancel_scope.deadline = trio.current_time() + STOP_SENDING_SECONDS_MAX
        say(f"{len(workload.acknowledged)} messages are acknowledged; waiting for consumers")
        await workload.wait_drained()
        watchers.cancel_scope.cancel()
    for node, most_bytes in sorted(memory.items()):
        recorder.note("memory", n=node, v=most_bytes)
    recorder.note("send-paths", v=paths.totals())
    if cluster.nodes != cluster.founders:
        recorder.note("members", v=cluster.nodes)
    say("waiting until all replicas are level, then reading them")
    if count := await end_closed_senders(cluster):
        recorder.note("still-sending", v=count)
    await cluster.wait_level()
    await read_replicas(cluster, recorder, workload.topic)
    if cluster.storage is not None:
        ranges = sum(line.startswith("GET 206") and "/log/" in line for line in cluster.storage.answered_requests())
        recorder.note("store-ranges", v=ranges)


def archive_settings(endpoint_url: str) -> dict[str, str]:
    """Return the settings of brokers that archive their log in the store at ``endpoint_url``."""
    return {"archive_url": f"s3://{BUCKET}/{PREFIX}", "archive_endpoint_url": endpoint_url}


def _first_error(group: BaseExceptionGroup[NotRecovered]) -> BaseException:
    """Return one of the errors in nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _programs(plan: Plan, cluster: Cluster, topic: str, say: Callable[[str], None]) -> dict[str, Sequence[str]]:
    """Separate client processes: the Java client if it is available, SDK clients if the faults kill clients."""
    programs: dict[str, Sequence[str]] = {}
    if "clients" in plan.nemeses:
        programs |= sdk_programs(cluster.namesrv, topic, GROUP)
    if (reason := java_missing(plan.nemeses, plan.security)) is None:
        programs |= java_program(cluster.namesrv, topic, GROUP, cluster.directory)
    else:
        say(f"RocketMQ's Java client takes no part: {reason}")
    return programs


def _describe(plan: Plan, cluster: Cluster, workload: Workload) -> dict[str, object]:
    disk = shutil.disk_usage(cluster.directory)
    return {
        "format": FORMAT,
        "workload": plan.workload,
        "nemeses": plan.nemeses,
        "backend": plan.backend,
        "planted": plan.planted,
        "scenario": plan.scenario,
        "quick": plan.quick,
        "seed": plan.seed,
        "seconds": plan.seconds,
        "command": plan.command,
        "nodes": cluster.nodes,
        "queues": workload.queues,
        "programs": sorted(workload.programs),
        "java": java_missing(plan.nemeses, plan.security) or "takes part",
        "security": plan.security,
        "settings": dict(cluster.settings),
        "version": version("raftmq"),
        "wall_ns": time.time_ns(),
        "disk_used": round(1 - disk.free / disk.total, 3),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


async def _create_topic(cluster: Cluster, topic: str, attributes: Mapping[str, str]) -> None:
    """Create a topic, and retry until the name server knows the leader. Raises ClusterFailed."""
    error: ClientError | None = None
    async with Admin(cluster.namesrv) as admin:
        with trio.move_on_after(30):
            while True:
                try:
                    await admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES, attributes=attributes)
                    return
                except ClientError as refused:
                    error = refused
                await trio.sleep(0.1)
    raise ClusterFailed(f"the topic {topic} could not be created: {error}")


async def _watch(cluster: Cluster, recorder: Recorder, memory: Counter[str], paths: SendPathCounts) -> None:
    """Record leaders with their terms, wrong clocks, unexpected exits, the peak memory of each server, in bytes, and
    the numbers of messages by send path, until cancelled.
    """
    roles: dict[str, tuple[str, str]] = {}
    skews = ClockSkews()
    while True:
        for node, code in cluster.ended_by_themselves().items():
            recorder.note("ended", n=node, err=f"exit code {code}")
        for node in cluster.nodes:
            memory[node] = max(memory[node], cluster.memory_bytes(node))
        for node, table in (await cluster.all_figures()).items():
            paths.update(node, table)
            if (skew := skews.news(node, table, time.time_ns() / 1e9)) is not None:
                recorder.note("skew", n=node, v=skew)
            role = (table["raftmq.role"], table["raftmq.term"])
            if roles.get(node) != role:
                roles[node] = role
                recorder.note("role", n=node, v=role)
        await trio.sleep(0.5)


async def _tell_progress(workload: Workload, say: Callable[[str], None]) -> None:
    while True:
        await trio.sleep(PROGRESS_SECONDS)
        say(f"{len(workload.acknowledged)} messages acknowledged, {len(workload.consumed)} consumed")


async def _look_at_what_is_left(cluster: Cluster, recorder: Recorder) -> None:
    """Verify and compare the logs of stopped brokers, and search their output for errors."""
    reports: dict[str, LogVerification] = {}

    async def verify(node: str) -> None:
        reports[node] = await verify_log(cluster, node)

    async with trio.open_nursery() as nursery:
        for node in cluster.nodes:
            nursery.start_soon(verify, node)
    for node, report in reports.items():
        recorder.note("verified", n=node, v=report.verdict)
    logs = {node: (cluster.data_dir(node) / "commitlog", reports[node]) for node in cluster.nodes}
    recorder.note("compared", v=await trio.to_thread.run_sync(differences, logs))
    for node in cluster.nodes:
        with cluster.log_file(node).open(errors="replace") as lines:
            for line in errors_in(lines):
                recorder.note("said", n=node, v=line)
        with cluster.log_file(node).open(errors="replace") as lines:
            recorder.note("met", n=node, v=dict(count_states(lines)))
