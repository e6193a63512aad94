# Two commands: `make demo` and `make test`. Both set up everything they need; see README.md.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
SETUP_STAMP := $(VENV)/.ready-$(shell cat requirements/dev.txt pyproject.toml | cksum | cut -d' ' -f1)

ENGINE ?= simulator
POLICY ?= ShortRequestFirst
TRACE ?=
SGLANG ?=
ARGS ?=
KEEP ?=

.PHONY: help setup tools vllm-env test test-fast test-controlplane test-vllm test-compat test-keda lint demo bench-queueing bench-vllm bench-replay bench-advice bench-agreement bench-sizing crds lock clean

help:
	@echo "make demo [POLICY=...] [ENGINE=vllm] [TRACE=file] [KEEP=1]"
	@echo "                                               the whole path on this machine"
	@echo "make test                                      every test (unit, conformance, control plane, real vLLM)"
	@echo "make test-compat                               the scheduler under every vLLM release that is supported"
	@echo "make test-keda                                 autoscaling by the real KEDA, which is built first"
	@echo "make bench-queueing [SGLANG=folder]            what each queue policy costs, beside vLLM's and SGLang's own"
	@echo "make bench-vllm [ARGS=...]                     what each policy does to users, inside the real vLLM"
	@echo "make bench-replay                              how fast a trace is replayed on one core, and in how much memory"
	@echo "make bench-advice [ARGS=--mixed]               how good advice is, judged on the half of a trace that it has not seen"
	@echo "make bench-agreement                           whether a replay foretells what a real engine does"
	@echo "make bench-sizing [ARGS=...]                   how well a fleet is sized, beside HPA, KEDA and a clairvoyant plan"
	@echo "make lint | test-fast | crds | lock            for contributors; see CONTRIBUTING.md"

# The environment of the product and of its tests: locked versions and hashes, installed by a pinned uv.
setup: $(SETUP_STAMP)

$(SETUP_STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d: set PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@echo "setup: making $(VENV) from requirements/dev.txt"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@rm -f $(VENV)/.ready-* && touch $@

# The control plane's programs, from PATH or built once into the user's cache (about 12 minutes on two cores).
tools: setup
	@$(BIN)/python -m tests.support.binaries

vllm-env: setup
	@$(BIN)/python -m tests.support.vllm_env

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: setup
	$(BIN)/python -m pytest tests/unit tests/conformance tests/golden tests/e2e

test-controlplane: tools
	$(BIN)/python -m tests.support.by_file tests/controlplane

# KEDA's operator and adapter are built once into the user's cache (6 minutes on two cores), for this alone.
test-keda: tools
	@$(BIN)/python -m tests.support.binaries keda-operator keda-adapter
	$(BIN)/python -m pytest tests/controlplane/keda

# One at a time: each file's engines take both cores and much of the memory.
test-vllm: vllm-env
	$(BIN)/python -m tests.support.by_file --workers 1 tests/vllm

test: lint tools vllm-env
	$(BIN)/python -m tests.support.by_file --workers 1 tests/vllm
	$(BIN)/python -m tests.support.by_file tests/controlplane --whole tests/conformance tests/unit tests/e2e tests/golden

# Each release is built once into the user's cache (about 15 seconds and 50 MB), beside the environment of test-vllm.
test-compat: vllm-env
	$(BIN)/python -m pytest -s -v tests/compat

demo: setup
	@$(BIN)/python -m tests.support.demo --engine "$(ENGINE)" --policy "$(POLICY)" $(if $(TRACE),--trace "$(TRACE)") $(if $(KEEP),--keep)

# SGLANG: a folder from which `sglang` can be imported beside vLLM's own packages; without one its rows are left out.
bench-queueing: setup
	@python=$$($(BIN)/python -m tests.support.vllm_env) && \
	PYTHONPATH="node_runtime:.$(if $(SGLANG),:$(SGLANG))" VLLM_LOGGING_LEVEL=ERROR $$python -W ignore -m tests.benchmarks.queueing

# ARGS: such as "--half virtual --seeds 2"; "--help" lists all.
bench-vllm: vllm-env
	@$(BIN)/python -m tests.benchmarks.policies $(ARGS)

bench-replay: setup
	@$(BIN)/python -m tests.benchmarks.replay $(ARGS)

# ARGS: such as "--load 0.9"; "--help" lists all. The public traces must lie in ../shared/traces.
bench-advice: setup
	@$(BIN)/python -m tests.benchmarks.advice $(ARGS)

bench-agreement: vllm-env
	@$(BIN)/python -m tests.benchmarks.agreement $(ARGS)

# ARGS: such as "--scenario wave". The public traces must lie in ../shared/traces.
bench-sizing: setup
	@$(BIN)/python -m tests.benchmarks.sizing $(ARGS)

crds: setup
	$(BIN)/prefleet crd

# Versions and hashes only: no index, no download address.
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11
lock: setup
	$(LOCK) pyproject.toml --group dev --extra operator --extra replay --no-emit-package prefleet -o requirements/dev.txt
	$(LOCK) requirements/vllm.in --overrides requirements/vllm-overrides.txt -o requirements/vllm.txt
	$(LOCK) requirements/routers.in -o requirements/routers.txt
	$(LOCK) --no-deps requirements/sglang.in -o requirements/sglang.txt

clean:
	rm -rf $(VENV) build
