# Everything a developer does here, one target each. A fresh machine needs Python >= 3.11 with
# venv, and make; the environment lives in .venv and is renewed only when a lock changed.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Set in many container images; without it a second run collects its tests in a third of the time.
unexport PYTHONDONTWRITEBYTECODE

# What tests read of other programs is UTF-8 in every language.
export PYTHONUTF8 := 1

# Where `make run` keeps what an installed agent keeps in /run and /var/lib.
LOCAL  ?= .local
BOARDS ?= h100-80gb:2
PLAN   ?= examples/plan.yaml

PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# uv takes seconds where pip takes a minute. It does not read pip's configuration: where it finds
# no index by itself, pip does the same.
INSTALL  = $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || $(PIP) install $(1)
RUN     := $(VENV)/.run.stamp
DEV     := $(VENV)/.dev.stamp
SOURCES := nodeagent tests bench tools

# The label's pipe must not hide that tests failed.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c

.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

run: $(RUN)  ## start the agent on a simulated node (BOARDS=h100-80gb:2 PLAN=examples/plan.yaml)
	@mkdir -p $(LOCAL)/run
	@# A new node each time, of which no agent knows anything; not below an agent that has the lock.
	@flock --nonblock $(LOCAL)/node.json.writer.lock rm -rf $(LOCAL)/node.json $(LOCAL)/state || true
	@NODEAGENT_RUN_DIR=$(LOCAL)/run NODEAGENT_STATE_DIR=$(LOCAL)/state \
	  exec $(BIN)/nodeagent run --simulate $(BOARDS) --state $(LOCAL)/node.json --plan $(PLAN)

run-cluster: $(RUN)  ## the same beside an API server to try it with: annotate, watch the status
	@exec $(BIN)/python -m tests.simulated_cluster --folder $(LOCAL)/cluster --agent $(BOARDS)

check: lint types layers pytest-pure  ## the quick part of it, under a minute: no process, no socket

test: lint  ## everything that has to pass: lint, types, layers, tests
	@$(MAKE) --no-print-directory --jobs LABELLED=yes types layers $(PARTS)

test-full: lint  ## with the long tests too, those marked `full`
	@NODEAGENT_TEST_FULL=1 $(MAKE) --no-print-directory --jobs LABELLED=yes CHOICE= types layers $(PARTS)

install: $(DEV)  ## the environment with all tools

format: $(DEV)  ## write the code in its one form
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format --quiet $(SOURCES)

lint: $(DEV)  ## ruff: rules and form
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(DEV)  ## mypy --strict
	$(BIN)/mypy

layers: $(DEV)  ## who may import whom
	$(BIN)/lint-imports --no-logo

pytest: $(DEV)  ## the tests alone (ARGS='-k planner')
	$(BIN)/python -m pytest $(ARGS)

# Which part a line is from, where several write at the same time.
LABEL    = $(if $(LABELLED),2>&1 | sed -u 's/^/$(@:pytest-%=%): /')

# Of each part its failures, at once, and a line when it has ended.
QUIET    = $(if $(LABELLED),-q -o verbosity_test_cases=-2 -o console_output_style=classic)

# Five parts of them, side by side in `make test` and beside mypy, which has one thread: all but the
# first mostly wait for programs, for MPS daemons or for an API server. The random days are in the
# part that ends first. `make pytest` leaves nothing out.
PARTS   := pytest-computing pytest-commands pytest-programs pytest-daemons pytest-cluster
CHOICE  := -m 'not full'
PURE    := tests/documents tests/health tests/metrics tests/mps/lifecycle tests/plan tests/views \
  $(addprefix tests/cluster/drain/test_,change.py eviction.py other_managers.py)
CLUSTER := tests/cluster tests/simulated_cluster tests/manifests \
  $(wildcard tests/acceptance/test_cluster*.py)
REAL    := tests/real_cluster
DAEMONS := tests/mps tests/simulation/mps
COMMANDS := tests/app tests/cli tests/claims tests/goldens
PROGRAMS := tests/campaign $(filter-out $(CLUSTER), $(wildcard tests/acceptance/test_*.py))

pytest-pure: $(DEV)
	$(BIN)/python -m pytest -p no:cacheprovider $(CHOICE) $(PURE)

pytest-computing: $(DEV)
	$(if $(LABELLED),@)$(BIN)/python -m pytest $(QUIET) -p no:cacheprovider $(CHOICE) \
	  $(patsubst %,--ignore=%,$(COMMANDS) $(PROGRAMS) $(DAEMONS) $(CLUSTER) $(REAL)) $(LABEL)

pytest-commands: $(DEV)
	$(if $(LABELLED),@)$(BIN)/python -m pytest $(QUIET) -p no:cacheprovider $(CHOICE) $(COMMANDS) $(LABEL)

pytest-programs: $(DEV)
	$(if $(LABELLED),@)$(BIN)/python -m pytest $(QUIET) -p no:cacheprovider $(CHOICE) $(PROGRAMS) $(LABEL)

pytest-daemons: $(DEV)
	$(if $(LABELLED),@)$(BIN)/python -m pytest $(QUIET) -p no:cacheprovider $(CHOICE) $(DAEMONS) $(LABEL)

pytest-cluster: $(DEV)
	$(if $(LABELLED),@)$(BIN)/python -m pytest $(QUIET) -p no:cacheprovider $(CHOICE) $(CLUSTER) $(LABEL)

real-cluster: $(DEV)  ## the agent in the cluster that NODEAGENT_TEST_KUBECONFIG names (ARGS='-k five')
	$(BIN)/python -m pytest -p no:cacheprovider $(REAL) $(ARGS)

goldens: $(DEV)  ## record anew what users meet; the diff in git is then to be decided on
	$(BIN)/python -m tests.goldens $(ARGS)

cover: $(DEV)  ## the tests, and which lines they miss
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage report

size: $(DEV)  ## lines and files of Python: product, simulator, tests
	@$(BIN)/python tools/count_lines.py

mutants: $(DEV)  ## how many of 200 small changes of the code the tests notice; goes on where it ended (MUTANTS=20 SEED=12)
	$(BIN)/python -m tools.mutants --scratch .local/mutants-$(or $(SEED),11) --seed $(or $(SEED),11) \
	  $(if $(MUTANTS),--at-most $(MUTANTS)) $(ARGS)

fuzz: $(DEV)  ## read changed inputs by every parser of text from outside (INPUTS=1000000 SEED=2)
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),100000) --seed $(or $(SEED),1) $(ARGS)

campaign: $(DEV)  ## random days of the agent on a simulated node, and what came of them (SEEDS=1-1000)
	$(BIN)/python -m tests.campaign $(or $(SEEDS),1-1000) $(ARGS)

campaign-processes: $(DEV)  ## the same with real processes, in real time (SEEDS=1-100)
	$(BIN)/python -m tests.campaign.real $(or $(SEEDS),1-100) $(ARGS)

soak: $(DEV)  ## a day of the agent in one process on virtual time, and whether anything of it grows (HOURS=24 SEED=1)
	$(BIN)/python -m tests.campaign.soak $(or $(HOURS),24) $(or $(SEED),1)

bench: $(RUN)  ## print the tables of benchmarks
	$(BIN)/python -m bench

man: $(RUN)  ## write a manual page for each command into build/man
	$(BIN)/python tools/make_man_pages.py build/man

dist: $(RUN)  ## what is released, in dist/: wheel, sdist, image recipe, manifests, chart, plugin, man, SBOM
	@$(BIN)/python -m tools.make_dist

card-kit: $(DEV)  ## pack what examines the agent on a machine with a GPU, Python 3.12 and no network
	@$(BIN)/python -m tools.card_kit.pack

audit: $(BIN)/uv  ## ask PyPI for known vulnerabilities of what is locked; needs its JSON API
	@for name in install run build dev; do $(BIN)/uv tool run pip-audit --strict --disable-pip \
	  --require-hashes -r requirements/$$name.txt || exit 1; done

lock:  ## pin what is installed anew, with hashes, from pyproject.toml
	@$(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip --disable-pip-version-check --quiet install -r requirements/install.txt
	@for name in install run build dev; do PATH=$(VENV)-lock/bin:$$PATH ./requirements/lock $$name; done

clean:  ## remove what the targets above made
	rm -rf $(VENV) $(VENV)-lock $(LOCAL) build dist .coverage \
	  .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ----------------------------------------------------------------------------

$(BIN)/python:
	@echo "making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	@$(PYTHON) -m venv $(VENV)

$(BIN)/uv: requirements/install.txt | $(BIN)/python
	@$(PIP) install --require-hashes -r requirements/install.txt
	@touch $@

$(RUN): requirements/run.txt requirements/build.txt pyproject.toml $(BIN)/uv
	@echo "installing requirements/run.txt"
	@$(call INSTALL,--require-hashes -r requirements/run.txt -r requirements/build.txt)
	@$(call INSTALL,--no-deps --no-build-isolation -e .)
	@touch $@

$(DEV): requirements/dev.txt $(RUN)
	@echo "installing requirements/dev.txt"
	@$(call INSTALL,--require-hashes -r requirements/dev.txt)
	@touch $@

.PHONY: help run run-cluster real-cluster check test test-full install format lint types layers pytest \
  pytest-pure $(PARTS) goldens cover size mutants fuzz campaign campaign-processes soak bench man dist card-kit audit \
  lock clean
