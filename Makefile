# Everything a developer or a first-time user runs. Each target sets up .venv first when it is missing or out of date.

PY := .venv/bin/python
INSTALLED := .venv/.installed
# PySpark with its jars takes most of a gigabyte: an environment of its own.
SPARK_PY := .venv-spark/bin/python
SPARK_INSTALLED := .venv-spark/.installed
# Drivers, executors and brokers are on this machine; its host name may lead elsewhere.
SPARK_ENV := SPARK_LOCAL_IP=127.0.0.1 SPARK_LOCAL_HOSTNAME=localhost
SEEDS := 0-199
# What is simulated: the log alone, or brokers with clients of one kind.
WORKLOADS := log busy-host delay transactions pop ordered-pop dedup mixed scan recreated crowded lite filtered
WORKLOAD := log
# What `make jepsen` runs unless told otherwise.
JEPSEN := matrix --profile ci

# ASYNC109: the SDK's `timeout` is a budget over retries. ASYNC119: its async generators are context managers.
# ASYNC124: handlers are asynchronous by contract, also those that never wait. ASYNC128: a server may hand its
# task_status on to what it is made of. ASYNC910 and 911 (a checkpoint on every path) hold for the servers only.
ASYNC_RULES_OFF := ASYNC109,ASYNC119,ASYNC124,ASYNC128,ASYNC912,ASYNC913
# Each pass over the syntax tree costs 0.1 s for each file. Ruff has these two rules, the second one as RUF006.
ASYNC_RULES_OF_RUFF := ASYNC100,ASYNC300
SERVERS := raftlog mq/namesrv mq/broker mq/proxy mq/filter_server
# Two processes, and no file in which none of the rules of flake8_async can apply.
ASYNC_TEXT := async (def|with|for)|[^a-z](trio|anyio)[^a-z]|BaseException
ASYNC_LINT = xargs -P 2 -n 40 $(PY) deploy/async_lint.py --startable-in-context-manager=$(STARTABLE)
# Functions with task_status, so that `nursery.start_soon` on one of them is noticed.
STARTABLE := run,serve,drain_on_signals,_spark,serve_node,cancel_on_signal,_serve,_read_consumer,group_segment_bytes,_with_segment_bytes,_run_clients,serve_grpc,_listen

# Tests start hundreds of processes of this project: without bytecode on the disk, each would compile all its modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
BENCHES := bench-peers bench-peers-consuming bench-gate bench-steady bench-paced bench-memory bench-curves bench-store
BENCHES += bench-low-rate bench-client bench-delays-transactions-pop bench-metrics bench-fairness bench-backup
BENCHES += bench-exactly-once bench-failover
BENCHES += bench-archive bench-filter bench-celery bench-celery-chaos bench-proxy bench-critical-path bench-goals
.PHONY: help demo demo-spark test test-spark test-all test-nightly test-speeds ci coverage check interop jepsen docker-image bench $(BENCHES)
.PHONY: bench-spark bench-spark-kafka docs
.PHONY: fmt sanitize fuzz sim dist dist-check measure-client lock proto clean

# What follows two of these signs, below.
help:
	@awk -f deploy/help.awk Makefile

$(INSTALLED): requirements.lock pyproject.toml deploy/setup-venv.sh $(wildcard */compiled/*.p[yx][xid])
	@deploy/setup-venv.sh
	@touch $@

# Java is looked for first: without it nothing is downloaded. What .venv has is not installed once more.
$(SPARK_INSTALLED): requirements-spark.lock pyproject.toml deploy/setup-venv.sh $(INSTALLED)
	@deploy/setup-venv.sh .venv-spark requirements-spark.lock
	@touch $@

## demo: three replicas, real messages, the leader killed in the middle: nothing is lost
demo: $(INSTALLED)
	@$(PY) -m mq.cli demo --keep $(ARGS)

## demo-spark: the same for Apache Spark: it reads from the followers, counts words, writes, and makes a table; needs Java 17
demo-spark:
	@deploy/check-java.sh
	@$(MAKE) --no-print-directory $(SPARK_INSTALLED)
	@$(SPARK_ENV) $(SPARK_PY) -m spark.demo $(ARGS)

# Without Java this says so and succeeds: nothing else in this project needs it. PySpark is not free of warnings.
# These tests start many processes and run nothing for long: Java's second compiler costs more than it gives.
test-spark: PY := $(SPARK_PY)
QUICK_START := JDK_JAVA_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' PYTHONPATH=$(CURDIR)/tests/spark/quick_start
## test-spark: the data source in Apache Spark; needs Java 17, makes .venv-spark
test-spark:
	@if deploy/check-java.sh; then \
	    $(MAKE) --no-print-directory $(SPARK_INSTALLED) && \
	    $(SPARK_ENV) $(QUICK_START) $(call PYTEST,spark) -W default $(or $(ARGS),-m "not nightly" tests/spark); \
	else echo 'raftmq: the tests with Spark are left out'; fi

# Five lanes side by side on two processors, since tests with sockets and processes wait much of the time; always the
# same tests in the same order in each. ARGS, if there are any, go to one process, as in
# make test ARGS='tests/unit/segment -k torn'.
## test: the quick tests: units, some simulated and real groups; 5 minutes on two processors
test: $(INSTALLED)
ifdef ARGS
	$(PY) -m pytest $(ARGS)
else
	@$(MAKE) --no-print-directory -j 5 .test-brokers .test-clients .test-replicas .test-processes .test-others SELECTED="-m 'not slow and not nightly'"
endif

# Nothing here opens a socket or starts a process: tests/no_sockets.py fails what does. Files are in memory, generated
# tests have fewer examples, and what walks through thousands of states is left to `make test`.
UNIT_FILES := tests/unit/segment tests/unit/durability tests/unit/consensus tests/unit/store tests/unit/protocol
UNIT_FILES += tests/paper tests/interaction tests/wire
UNIT_OTHER_FILES := tests/unit/broker tests/unit/filter tests/unit/jepsen tests/unit/spark tests/unit/monitoring
UNIT_OTHER_FILES += tests/unit/fuzz tests/unit/interop tests/unit/celery
OPENS_SOCKETS := segment/test_synced_writes segment/test_threaded_writers segment/test_full_disks segment/test_s3_upload
OPENS_SOCKETS += durability/test_restored_logs store/test_key_index monitoring/test_probe
OPENS_SOCKETS += protocol/test_families protocol/test_client_decoding
OPENS_SOCKETS += broker/base/test_name_server_registration broker/consume/test_routes broker/archive/test_worker_process
OPENS_SOCKETS += spark/test_bulk_reader spark/test_access spark/test_columns spark/test_installed
OPENS_SOCKETS += spark/test_outgoing
OPENS_SOCKETS += $(addprefix spark/tables/,test_object_directory test_schema_files test_cluster_machines)
OPENS_SOCKETS += $(addprefix jepsen/test_,client_process deployments judging late_sends leftovers)
OPENS_SOCKETS += $(addprefix jepsen/test_,object_storage porcupine scenarios serve)
WALKS := paper/test_random_walks paper/test_membership unit/segment/test_crashes unit/segment/test_writer_interleavings
WALKS += unit/segment/test_damage_sectors unit/segment/test_every_byte unit/segment/test_reset
UNIT_LEFT_OUT := $(OPENS_SOCKETS:%=--ignore=tests/unit/%.py) $(WALKS:%=--ignore=tests/%.py)
# Only where there is room: containers often have 64 MB.
IN_MEMORY = $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 1000000 ] 2>/dev/null && echo env PYTEST_DEBUG_TEMPROOT=/dev/shm)
UNIT_TEST = $(IN_MEMORY) $(call PYTEST,$(1)) -q -p tests.no_sockets --hypothesis-profile=few-examples -m 'not slow and not nightly' \
    $(UNIT_LEFT_OUT)
## test-unit: the units, without sockets and processes; about 20 seconds on two processors
test-unit: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 .unit .unit-others
.PHONY: test-unit .unit .unit-others
.unit:
	@$(call UNIT_TEST,unit) $(UNIT_FILES)
.unit-others:
	@$(call UNIT_TEST,unit-others) $(UNIT_OTHER_FILES)

## sanitize: tests of the Cython modules with sanitizers for addresses and undefined behaviour; with ARGS=threads those of the log writer with the sanitizer for data races; needs gcc
sanitize: $(INSTALLED)
	@PY=$(PY) deploy/sanitize.sh $(ARGS)

## fuzz: mutates requests for half a minute, with sanitizers, where that reaches new code: both forms of the parsers must agree; make fuzz ARGS="--seconds 3600 --grow tests/fuzz/corpus" for long; needs gcc
fuzz: $(INSTALLED)
	@PY=$(PY) deploy/sanitize.sh fuzz $(ARGS)

# Four lanes side by side. Real processes wait for each other much of the time, and so do brokers in one process and
# Spark; what only computes gets the time of processors that these leave (docs/decisions/0029). Each test runs once:
# docs/decisions/0041.
LANES := .lane-processes .lane-brokers .lane-in-process .lane-simulation
## test-all: all tests, with Java those of Spark too; 25 minutes on two processors
test-all: $(INSTALLED)
	@$(MAKE) --no-print-directory --keep-going -j 5 $(LANES)

# What .ci/run runs: lint, which refuses within seconds, then the lanes. The other checks are a fifth one, which only
# computes, too; the project's own rules are among them.
## ci: what .ci/run runs: make test-all and, as a fifth lane, the checks, sanitizers, the fuzzer and make bench-gate
ci: .lint
	@$(MAKE) --no-print-directory test-all LANES='$(LANES) .lane-checks' \
	    CHECKED='--ignore=tests/test_tidy.py --ignore=tests/test_names_of_tests.py --ignore=tests/test_docstrings.py'

## test-nightly: what make test-all leaves out: programs behind make bench once each, 200 seeds of all workloads; and processes started, not forked
test-nightly: $(INSTALLED)
	$(PY) -m pytest -m 'nightly or process' $(ARGS)
	@$(MAKE) --no-print-directory test-spark ARGS='-m nightly tests/spark'
	@$(MAKE) --no-print-directory sim

# What a test takes for granted about the speed of a machine comes to light here: docs/decisions/0041.
## test-speeds: the quick tests as on a machine three times as fast, and on one four times as slow; needs gcc
test-speeds: $(INSTALLED)
	deploy/at-speed.sh 3 $(MAKE) --no-print-directory test
	deploy/at-speed.sh 0.25 $(MAKE) --no-print-directory test

IN_TURN = @$(MAKE) --no-print-directory --keep-going -j 1
.lane-processes:
	$(IN_TURN) .part-processes .part-spark
.lane-brokers:
	$(IN_TURN) .part-brokers .part-python-forms
.lane-in-process:
	$(IN_TURN) .part-in-process
.lane-checks:
	$(IN_TURN) .part-check .part-unit .part-sanitize .part-sanitize-threads .part-gate
.lane-simulation:
	$(IN_TURN) .part-simulation

PART := @deploy/part.sh
# Parts run side by side: each has a cache of its own.
PYTEST = $(PY) -m pytest -o cache_dir=.pytest_cache/$(1)
# Processes of this project are forked, not started (tests/support/warm_processes.py), but by night.
WARM := --warm-processes
# Each part lists what costs most, so that whoever wants it to be cheaper knows where to begin.
IN_CI := --most-cpu 25 $(WARM) -m 'not nightly'
# What compiled modules do in the tests above, the code in Python has to do in these; of tests that run both forms
# themselves, only some are here.
IN_BOTH_FORMS := tests/broker/produce tests/broker/write_path tests/broker/net tests/broker/replication tests/unit/replica
IN_BOTH_FORMS += tests/unit/store/test_dispatch.py tests/unit/segment/test_threaded_writers.py tests/unit/compiled/test_checked_records.py
IN_BOTH_FORMS += --ignore=tests/broker/net/test_cut_streams.py --ignore=tests/broker/net/test_bad_frames.py
.part-processes:
	$(PART) processes $(call PYTEST,processes) $(IN_CI) tests/process
BROKERS := tests/broker tests/attacks
.part-brokers:
	$(PART) brokers $(call PYTEST,brokers) $(IN_CI) $(BROKERS)
.part-in-process:
	$(PART) in-process $(call PYTEST,in-process) $(IN_CI) $(CHECKED) \
	    $(addprefix --ignore=,$(BROKERS) tests/process tests/simulation tests/spark)
.part-python-forms:
	$(PART) python-forms env RAFTMQ_PURE_PYTHON=1 $(call PYTEST,python-forms) $(IN_CI) $(IN_BOTH_FORMS)
.part-spark:
	@if ! deploy/check-java.sh || $(MAKE) --no-print-directory $(SPARK_INSTALLED); then \
	    deploy/part.sh spark $(MAKE) --no-print-directory test-spark ARGS=; \
	else echo 'raftmq: PySpark cannot be installed here, so the tests with Spark are left out'; fi
.part-check:
	$(PART) --last check $(MAKE) --no-print-directory .rules
# These tests run elsewhere, too: here, what opens a socket or starts a process fails.
.part-unit:
	$(PART) --last unit $(MAKE) --no-print-directory test-unit
.part-sanitize:
	$(PART) --last --unless-3 sanitize env PY=$(PY) deploy/sanitize.sh both --seconds 30
.part-sanitize-threads:
	$(PART) --last --unless-3 sanitize-threads env PY=$(PY) deploy/sanitize.sh threads
.part-gate:
	$(PART) --last --unless-3 gate $(PY) -m benchmarks.gate
# What `make test` has of them is part of what runs here.
.part-simulation:
	$(PART) --last simulation $(call PYTEST,simulation) $(IN_CI) -k 'not quickly' tests/simulation

.PHONY: .test-brokers .test-clients .test-replicas .test-processes .test-others .lane-processes .lane-brokers .lane-in-process .lane-checks .lane-simulation
.PHONY: .part-processes .part-brokers .part-in-process .part-python-forms .part-spark .part-check .part-sanitize .part-sanitize-threads
.PHONY: .part-unit .part-gate .part-simulation .lint .rules
# As long as each other, and in each some that wait and some that compute: tests of brokers are in four of them.
OF_BROKERS := tests/broker tests/attacks tests/unit/cli
OF_CLIENTS := tests/unit/client tests/broker/produce tests/unit/segment
OF_REPLICAS := tests/unit/replica tests/broker/admin tests/broker/quota tests/broker/filtering
OF_PROCESSES := tests/process tests/kit tests/frameworks tests/users tests/unit/filter_server
OF_PROCESSES += tests/broker/mirror tests/broker/lite tests/broker/schedule tests/broker/transaction
OF_OTHER_LANES := $(OF_CLIENTS) $(OF_REPLICAS) $(OF_PROCESSES)
.test-brokers:
	$(call PYTEST,brokers) $(WARM) $(SELECTED) $(OF_BROKERS) $(addprefix --ignore=,$(filter tests/broker/%,$(OF_OTHER_LANES)))
.test-clients:
	$(call PYTEST,clients) $(WARM) $(SELECTED) $(OF_CLIENTS)
.test-replicas:
	$(call PYTEST,replicas) $(WARM) $(SELECTED) $(OF_REPLICAS)
.test-processes:
	$(call PYTEST,quick-processes) $(WARM) $(SELECTED) $(OF_PROCESSES)
.test-others:
	$(PY) -m pytest $(WARM) $(SELECTED) $(addprefix --ignore=,$(OF_BROKERS) $(OF_OTHER_LANES) tests/spark)

# Which branches the quick tests reach, in figures and as pages in htmlcov. There is no number to reach.
## coverage: branch coverage of the quick tests; writes htmlcov
coverage: $(INSTALLED)
	@$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -q $(or $(ARGS),-m 'not slow and not nightly')
	@$(PY) -m coverage combine -q
	@$(PY) -m coverage html -q
	@$(PY) -m coverage report

.lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	git ls-files -z '*.pyx' '*.pxi' '*.pxd' | PATH='$(CURDIR)/.venv/bin':$$PATH xargs -0 cython-lint

## check: lint (also of Cython), format, types, import direction, own rules
check: .lint .rules

# All checks but lint.
.rules: $(INSTALLED)
	$(PY) -m mypy
	git grep -lE '$(ASYNC_TEXT)' -- $(SERVERS:%='%/*.py') | $(ASYNC_LINT) --disable=$(ASYNC_RULES_OFF),ASYNC300
	git grep -lE '$(ASYNC_TEXT)' -- '*.py' ':!tests' $(addprefix :!,$(SERVERS)) | \
	    $(ASYNC_LINT) --disable=$(ASYNC_RULES_OFF),$(ASYNC_RULES_OF_RUFF),ASYNC910,ASYNC911
	$(PY) -m pytest -q tests/test_tidy.py tests/test_names_of_tests.py tests/test_docstrings.py

## interop: third-party clients, those whose tools are installed; writes docs/reports/interop.md
interop: $(INSTALLED)
	@$(PY) -m tests.interop $(ARGS)
	@$(PY) -m tests.interop sdk

# The command of a checkout; the wheel has none.
.venv/bin/raftmq-jepsen: deploy/raftmq-jepsen.sh $(INSTALLED)
	@ln -sfr deploy/raftmq-jepsen.sh $@

## jepsen: real brokers under real faults, ten minutes: make jepsen ARGS="run --workload log --nemesis kill"
jepsen: .venv/bin/raftmq-jepsen
	@.venv/bin/raftmq-jepsen $(or $(ARGS),$(JEPSEN))

## docker-image: the container image raftmq:local; needs Docker
docker-image: $(INSTALLED)
	@deploy/docker-image.sh

## bench: msgs/s, latency and CPU per message; writes docs/benchmarks/produce.md
bench: $(INSTALLED)
	$(PY) -m benchmarks produce $(ARGS)

## bench-peers: the same load on raftmq, RocketMQ, NATS, RabbitMQ and etcd, those that are installed; writes docs/benchmarks/peers.md
## bench-peers-consuming: backlogs, steady rates, 1 to 16 groups on the same systems, and Python clients; writes docs/benchmarks/peers-consuming.md
## bench-gate: instructions per message against benchmarks/gate/baseline.json; needs valgrind
## bench-steady: a load of a minute or more, and the work that follows it; writes docs/benchmarks/steady.md
## bench-client: what one process of the SDK sends, with and without batches, and receives; writes docs/benchmarks/client.md
## bench-critical-path: who waits for what while a message is stored, and for how long; writes docs/benchmarks/critical-path.md
## bench-goals: measures nothing: writes which goals the last results meet into docs/benchmarks/goals.md and docs/performance.md
## bench-low-rate: 10 to 2,000 messages/s and none at all: latency, CPU, wake-ups, beside other systems; writes docs/benchmarks/low-rate.md
## bench-paced: latency at half of the maximum rate, in an open loop; writes docs/benchmarks/paced.md
## bench-memory: memory of replicas and clients under a load of half an hour; writes docs/benchmarks/memory.md
## bench-curves: CPU per message with more connections, queues, bytes, consumers, replicas, groups; writes docs/benchmarks/curves.md
## bench-store: many queues, restarts: the goals of the message store; writes docs/benchmarks/store.md
## bench-delays-transactions-pop: delays, timers, transactions, POP; writes docs/benchmarks/delays-transactions-pop.md
## bench-metrics: CPU and delays of a scrape of /metrics, with few and with many topics; writes docs/benchmarks/metrics.md
## bench-backup: the effect of a backup on producers, and the speed of a restore; needs 90 GB of disk; writes docs/benchmarks/backup.md
## bench-archive: what an archive in object storage costs, cold reads, replicas that join from it; needs 30 GB of disk; writes docs/benchmarks/archive.md
## bench-fairness: latency of a client beside demanding ones; writes docs/benchmarks/fairness.md
## bench-filter: CPU of filter servers and of the leader for each message, and bytes to consumers; writes docs/benchmarks/filter.md
## bench-exactly-once: checks that delayed and transactional messages become visible once while leaders are killed; writes a report
## bench-failover: how long writes stop when a leader fails; writes docs/reports/failover.md
## bench-proxy: raftmq proxy beside the proxy of RocketMQ; see python -m benchmarks proxy --help
## bench-celery: a task of Celery on raftmq, Redis and RabbitMQ, which must be installed; writes docs/celery.md
## bench-celery-chaos: 100,000 tasks of Celery while workers, leaders and connections break; writes docs/reports/celery-chaos.md
# Each is a case of `python -m benchmarks`, which lists them.
$(BENCHES): bench-%: $(INSTALLED)
	@$(PY) -m benchmarks $* $(ARGS)

## bench-spark: throughput and CPU of reads and writes by Spark; needs Java 17; writes docs/benchmarks/spark.md
bench-spark:
	@deploy/check-java.sh
	@$(MAKE) --no-print-directory $(SPARK_INSTALLED)
	@$(SPARK_ENV) $(SPARK_PY) -m benchmarks.spark $(ARGS)
	@$(MAKE) --no-print-directory bench-spark-kafka ARGS=

## bench-spark-kafka: the part of it beside Kafka and its connector; needs Maven; writes docs/benchmarks/spark-kafka.md
bench-spark-kafka:
	@deploy/check-java.sh
	@$(MAKE) --no-print-directory $(SPARK_INSTALLED)
	@$(SPARK_ENV) $(SPARK_PY) -m benchmarks.spark.kafka $(ARGS)

# Sphinx needs what the documented modules import, and nothing else needs Sphinx.
.venv-docs/.installed: requirements-docs.lock pyproject.toml deploy/setup-venv.sh $(INSTALLED)
	@deploy/setup-venv.sh .venv-docs requirements-docs.lock
	@touch $@

## docs: the documentation as a site, with a reference of the SDK, in build/docs
docs: .venv-docs/.installed
	@.venv-docs/bin/python docs/site/build.py build/docs

## fmt: format the code
fmt: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

## sim: clusters in simulated time: make sim SEEDS=0-999, HOURS=50, or SEED=42 to repeat one; WORKLOADS="log busy-host delay transactions pop ordered-pop dedup mixed scan recreated crowded lite filtered", or WORKLOAD=pop SEED=42
sim: $(INSTALLED)
ifdef SEED
	$(PY) -m chaos --workload $(WORKLOAD) --seed $(SEED) --trace $(ARGS)
else
	set -e; for workload in $(WORKLOADS); do \
	    $(PY) -m chaos --workload $$workload $(if $(HOURS),--hours $(HOURS),--seeds $(SEEDS)) $(ARGS); done
endif

## dist: source distributions and wheels, for each CPython 3.11 to 3.14 that is here, in dist; needs gcc
dist: $(INSTALLED)
	@$(PY) -m distributions.build

## dist-check: tries what make dist has built in new environments: sizes, imports, a client with raftmq dev
dist-check: $(INSTALLED)
	@$(PY) -m distributions.check

# The client alone, installed: bytes, import, and memory when idle; writes docs/python.md.
## measure-client: what the installed client takes: bytes, import, memory when idle; writes docs/python.md
measure-client: $(INSTALLED)
	@$(PY) -m distributions.measured $(ARGS)

# In an environment of its own: uv is needed here and nowhere else, and takes half a minute. Of the index it reads the
# metadata of packages; pip-tools fetches whole packages for that, hundreds of megabytes. Neither the address of an
# index nor an option of this machine belongs into the files. Both have the same versions of what both name.
# With the interpreter that .venv is made with: what is needed depends on its version.
COMPILE = .venv/lock/bin/uv pip compile -q --python .venv/lock/bin/python --generate-hashes --strip-extras --no-header
NEW_VENV = python=$$(deploy/find-python.sh) && $$python -m venv
LOCKED := .:dev,lz4,zstd distributions/server
## lock: resolve the lock files again from the pyproject.toml files
lock:
	$(NEW_VENV) .venv/lock && .venv/lock/bin/pip install -q uv
	.venv/lock/bin/python deploy/requirements.py $(LOCKED) >.venv/lock/requirements.in
	.venv/lock/bin/python deploy/requirements.py $(LOCKED) distributions/spark >.venv/lock/requirements-spark.in
	.venv/lock/bin/python deploy/requirements.py $(LOCKED) .:docs >.venv/lock/requirements-docs.in
	$(COMPILE) --output-file requirements.lock .venv/lock/requirements.in
	$(COMPILE) --constraint requirements.lock --output-file requirements-spark.lock .venv/lock/requirements-spark.in
	$(COMPILE) --constraint requirements.lock --output-file requirements-docs.lock .venv/lock/requirements-docs.in

# protoc of the release that the oldest supported protobuf can read the output of.
PROTO := mq/proxy/wire/messaging
## proto: compile the messages of the gRPC protocol again from mq/proxy/wire/messaging.proto
proto:
	$(NEW_VENV) .venv/proto && .venv/proto/bin/pip install -q grpcio-tools==1.72.2 setuptools==80.9.0
	.venv/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTO).proto
	sed -i '/: _ClassVar\[/d; s/ClassVar as _ClassVar, //' $(PROTO)_pb2.pyi  # numbers of fields, and enums a second time
	echo "# Made from messaging.proto with the SHA-256 $$(sha256sum <$(PROTO).proto | cut -c1-64)" >>$(PROTO)_pb2.py

## clean: remove the virtual environments and files of tools
clean:
	rm -rf .venv .venv-docs .venv-spark .raftmq .interop build dist spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
