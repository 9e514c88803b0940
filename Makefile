# Everything a developer or a CI machine runs. `make help` lists the targets.
#
# The environment is made by pip alone, in $(VENV); what is installed, in which order and why: requirements/cpu.in.

PYTHON ?= python3.11
VENV ?= .venv
TORCH_VERSION := 2.13.0
PIP_VERSION := 26.0
COSMIC_RAY_VERSION := 8.7.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.vime-ready

# The tests and the demo make their own models; nothing here may ask a hub or report usage.
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check nightly mutants docs chaos heavy pd pdchaos bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | while IFS="$$(printf '\t')" read -r name text; do \
	  printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: $(READY)  ## make $(VENV) with everything in it; returns at once when nothing changed

$(READY): requirements/cpu.lock pyproject.toml packaging/vllm-metadata/pyproject.toml Makefile
	@rm -f $@
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -qq pip==$(PIP_VERSION)
	$(PIP) install -qq --constraint requirements/cpu.lock torch==$(TORCH_VERSION)
	$(PIP) install -qq --no-deps --requirement requirements/cpu.lock
	$(PIP) install -qq --no-deps --no-build-isolation ./packaging/vllm-metadata
	$(PIP) install -qq --no-deps --no-build-isolation --editable .
	$(BIN)/python -m vime_adapters.vllm.cpu_check
	@touch $@

demo: setup  ## start a small fleet on this machine's CPUs and roll out with it
	$(BIN)/vime demo

test: setup  ## run every test, those that start real engines included
	$(BIN)/pytest

check: setup  ## formatting, lint, types, import contracts, fast tests with the core's coverage
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not engine" --cov

nightly: setup  ## run the laws with 200,000 examples and more, new ones every time (an hour of one core)
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest tests/property -v --examples 200000 --timeout 3600

MUTANTS := build/mutants/env
mutants: setup  ## mutate the core and see whether tests notice: MODULES="ports memory" ARGS="--sample 100 --seed 2"
	test -x $(MUTANTS)/bin/cosmic-ray || { $(PYTHON) -m venv $(MUTANTS) && \
	  $(MUTANTS)/bin/pip --disable-pip-version-check install -qq cosmic-ray==$(COSMIC_RAY_VERSION); }
	PATH=$(CURDIR)/$(MUTANTS)/bin:$$PATH python tools/mutation/sample.py --python $(BIN)/python $(ARGS) $(MODULES)

docs: setup  ## write the generated pages anew
	for tool in tools/[!_]*.py; do echo "$$tool" && $(BIN)/python "$$tool" || exit 1; done

chaos: setup  ## kill fifty random parts of a live fleet, one after the other, and count what came of it; half an hour
	$(BIN)/python -m tests.chaos

pd: setup  ## prefill/decode fleets of four layouts: the same tokens as one engine, blocks that move; a quarter of an hour
	$(BIN)/python -m tests.pd

heavy: setup  ## tests of real engines that take too long for every run: replicas behind urls, more prefill/decode
	$(BIN)/pytest tests/integration/replica_engines.py tests/integration/pd_layouts.py

pdchaos: setup  ## kill parts of a prefill/decode fleet while clients ask; a quarter of an hour
	$(BIN)/python -m tests.pd --chaos

bench: setup  ## run the benchmarks
	for bench in benchmarks/[!_]*.py; do echo "$$bench" && $(BIN)/python "$$bench" || exit 1; done

clean:  ## remove the environment and everything that a tool left
	rm -rf $(VENV) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -o -name '*.egg-info' | xargs rm -rf
