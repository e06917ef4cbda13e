# Everything a developer or a first-time user runs. Each target sets up .venv first when it is missing or out of date.

PY := .venv/bin/python
INSTALLED := .venv/.installed
SEEDS := 0-199
# What is simulated: the log alone, or brokers with clients of one kind.
WORKLOADS := log busy-host delay transactions pop ordered-pop dedup everyday
WORKLOAD := log

# ASYNC109: the SDK's `timeout` is a budget over retries. ASYNC119: its async generators are context managers.
# ASYNC124: handlers are asynchronous by contract, also those that never wait. ASYNC128: a server may hand its
# task_status on to what it is made of. ASYNC910 and 911 (a checkpoint on every path) hold for the servers only.
ASYNC_RULES_OFF := ASYNC109,ASYNC119,ASYNC124,ASYNC128,ASYNC912,ASYNC913
SERVERS := raftlog mq/namesrv mq/broker
# flake8_async takes 0.4 s for each file: two processes, and no file in which none of its rules can apply.
ASYNC_TEXT := async (def|with|for)|[^a-z](trio|anyio)[^a-z]|BaseException
ASYNC_LINT = xargs -P 2 -n 12 $(PY) -m flake8_async --startable-in-context-manager=$(STARTABLE)
# Functions with task_status, so that `nursery.start_soon` on one of them is noticed.
STARTABLE := run,serve,serve_node,cancel_on_signal,_serve,_read_consumer,group_segment_bytes,_with_segment_bytes

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check interop bench bench-store bench-special bench-once bench-failover fmt sim lock clean

help:
	@echo 'make demo    three replicas, real messages, the leader killed in the middle: nothing is lost'
	@echo 'make test    does it work here: units, a few simulated and real groups; 3 minutes on two processors'
	@echo 'make test-all   all tests; 20 minutes on two processors'
	@echo 'make check   lint, format, types, import direction, own rules'
	@echo 'make interop   clients that others wrote, as far as their tools are here; writes docs/reports/interop.md'
	@echo 'make bench   msgs/s, latency and CPU per message; writes docs/performance.md'
	@echo 'make bench-store   many queues, restarts: the goals of the message store; writes docs/performance.md'
	@echo 'make bench-special   delays, timers, transactions, POP; writes docs/performance.md'
	@echo 'make bench-once   each delayed and transactional message is visible once while leaders die; writes a report'
	@echo 'make bench-failover   how long nobody can write when a leader goes; writes docs/reports/failover.md'
	@echo 'make fmt     format the code'
	@echo 'make sim     clusters in simulated time: make sim SEEDS=0-999, HOURS=50, or SEED=42 to repeat one;'
	@echo '             WORKLOADS="log busy-host delay transactions pop ordered-pop dedup everyday", or WORKLOAD=pop SEED=42'
	@echo 'make lock    resolve requirements.lock again from pyproject.toml'
	@echo 'make clean   remove .venv and what tools left behind'

$(INSTALLED): requirements.lock pyproject.toml deploy/setup-venv.sh
	@deploy/setup-venv.sh
	@touch $@

demo: $(INSTALLED)
	@$(PY) -m mq.cli demo $(ARGS)

# Two halves side by side, always the same tests in the same order in each: what fails once fails again. ARGS, if there
# are any, go to one process, as in make test ARGS='tests/unit/segment -k torn'.
test: $(INSTALLED)
ifdef ARGS
	$(PY) -m pytest $(ARGS)
else
	@$(MAKE) --no-print-directory -j 2 .test-brokers .test-others SELECTED="-m 'not slow'"
endif

# The simulations come last and alone: they use all processors themselves.
test-all: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 .test-processes .test-in-process
	$(PY) -m pytest tests/simulation

.PHONY: .test-brokers .test-others .test-processes .test-in-process
.test-brokers:
	$(PY) -m pytest $(SELECTED) tests/unit/broker
.test-others:
	$(PY) -m pytest $(SELECTED) --ignore=tests/unit/broker
.test-processes:
	$(PY) -m pytest tests/process
.test-in-process:
	$(PY) -m pytest --ignore=tests/process --ignore=tests/simulation

check: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git grep -lE '$(ASYNC_TEXT)' -- $(SERVERS) | $(ASYNC_LINT) --disable=$(ASYNC_RULES_OFF)
	git grep -lE '$(ASYNC_TEXT)' -- '*.py' ':!tests' $(addprefix :!,$(SERVERS)) | \
	    $(ASYNC_LINT) --disable=$(ASYNC_RULES_OFF),ASYNC910,ASYNC911
	$(PY) -m pytest -q tests/test_tidy.py

interop: $(INSTALLED)
	@$(PY) -m tests.interop $(ARGS)

bench: $(INSTALLED)
	$(PY) -m benchmarks.produce $(ARGS)

bench-store: $(INSTALLED)
	@$(PY) -m benchmarks.store $(ARGS)

bench-special: $(INSTALLED)
	@$(PY) -m benchmarks.special $(ARGS)

bench-once: $(INSTALLED)
	@$(PY) -m benchmarks.once $(ARGS)

bench-failover: $(INSTALLED)
	@$(PY) -m benchmarks.failover $(ARGS)

fmt: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

sim: $(INSTALLED)
ifdef SEED
	$(PY) -m chaos --workload $(WORKLOAD) --seed $(SEED) --trace $(ARGS)
else
	set -e; for workload in $(WORKLOADS); do \
	    $(PY) -m chaos --workload $$workload $(if $(HOURS),--hours $(HOURS),--seeds $(SEEDS)) $(ARGS); done
endif

# In an environment of its own: pip-tools is needed here and nowhere else. Neither the address of an index nor an
# option of this machine's pip belongs into the file.
lock:
	python3.11 -m venv .venv/lock && .venv/lock/bin/pip install -q pip-tools
	.venv/lock/bin/pip-compile -q --generate-hashes --extra dev --build-deps-for editable --strip-extras \
	    --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	    --no-header --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .raftmq .interop build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
