# Every command of the project. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# uv brings the locked versions into .venv. What it may use of this machine stands in pyproject.toml, [tool.uv].
UV := .tools/bin/uv
RUN := $(UV) run --no-sync
STAMP := .venv/.moorings-setup
export UV_PROJECT_ENVIRONMENT := .venv
unexport VIRTUAL_ENV
# Thousands of processes start here: without compiled files each would compile everything again, for half of all its CPU.
unexport PYTHONDONTWRITEBYTECODE
# Its cache is shared by all checkouts, unless HOME is missing or may not be written.
ifndef UV_CACHE_DIR
export UV_CACHE_DIR := $(shell d="$${XDG_CACHE_HOME:-$${HOME:+$$HOME/.cache}}"; p="$${d:-/nowhere}/uv"; \
	while [ ! -e "$$p" ]; do p=$$(dirname "$$p"); done; \
	if [ -n "$$d" ] && [ -w "$$p" ]; then echo "$$d/uv"; else echo "$(CURDIR)/.tools/uv-cache"; fi)
endif

##@ Use

.PHONY: help
help: ## list the commands
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## a tour on simulated accelerators, on this machine alone
	@$(RUN) python -m examples.demo

##@ Work

.PHONY: check
check: setup ## format, lint, spelling, types, who imports whom (what a commit must pass; under a minute)
	$(RUN) ruff format --check --quiet --diff .
	$(RUN) ruff check --quiet .
	$(RUN) typos
	$(RUN) mypy
	$(RUN) lint-imports --no-logo

.PHONY: fix
fix: setup ## let ruff format and mend what it can; shows what is left
	$(RUN) ruff check --fix-only --quiet .
	$(RUN) ruff format --quiet .
	$(RUN) ruff check --quiet .

.PHONY: test
test: setup postgresql ## what CI runs: check, and a sample of the tests drawn by the tree; needs root
	@$(RUN) python -m tests.lanes --sample

.PHONY: test-all
test-all: setup postgresql ## check and every test, whole, in about 45 minutes; before a release; needs root
	@$(RUN) python -m tests.lanes

.PHONY: test-kubernetes
test-kubernetes: setup ## the tests on a real Kubernetes (KUBEBUILDER_ASSETS=FOLDER: on yours; KUBERNETES="-k hook" narrows it)
	$(RUN) pytest -n0 tests/kubernetes $(KUBERNETES)

# A server for the tests of the second database: this machine's, or Debian's packages unpacked in .tools.
.PHONY: postgresql
postgresql:
	@scripts/find-postgresql.sh > /dev/null

# A real Kubernetes for the tests: built once, from Debian's packages, and kept in a cache that all checkouts share.
.PHONY: kubernetes
kubernetes: setup
	@scripts/kubernetes.sh > /dev/null
	@scripts/kubernetes.sh --helm > /dev/null

.PHONY: sim
sim: setup ## a million steps of the simulator on all cores, with what they reached (SIM="--first 5000" takes other seeds)
	@$(RUN) python -m moorings.testing.simulation $(SIM)

.PHONY: fuzz
fuzz: setup ## hostile input for longer, with chance (FUZZ="--hypothesis-seed=N -k parsers" repeats or narrows it)
	$(RUN) pytest tests/hostile --hypothesis-profile=fuzz --timeout=3600 $(FUZZ)

.PHONY: guards
guards: setup ## take each guard of a law out of a copy of the source: its tests must fail (GUARDS="-k law" narrows it)
	$(RUN) pytest tests/guards -n 2 $(GUARDS)

.PHONY: bench
bench: setup ## our figures beside the anchors'
	@$(RUN) python -m benchmarks

##@ Documents

.PHONY: docs
docs: setup ## write the generated reference and manual pages
	$(RUN) python -m moorings.app.docs

.PHONY: changelog
changelog: setup ## what changelog.d says (VERSION=1.2.0: moves it into CHANGELOG.md, for a release)
	@$(RUN) towncrier build $(if $(VERSION),--yes --version "$(VERSION)",--draft --version Unreleased)

##@ Kubernetes

.PHONY: dist
dist: setup ## what a site installs on Kubernetes, as one file (DIST=--fresh: with today's packages, for a release)
	@$(RUN) python scripts/dist.py $(DIST)

.PHONY: scan
scan: setup ## what of the images is old, or known to be vulnerable (SCAN=--fresh: of images with today's packages)
	@$(RUN) python scripts/scan.py $(SCAN)

##@ House

.PHONY: clean
clean: ## remove what can be made again, except the downloaded tools
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name .tools -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Quick when nothing has changed: the stamp is newer than what it was made from.
.PHONY: setup
setup: $(STAMP)

$(STAMP): pyproject.toml uv.lock $(UV)
	$(UV) sync --locked --all-extras --quiet
	@touch $@

# A link to the uv on PATH, or to a private one: its age is the link's own (-L), and where the uv has gone, so does the link.
MAKEFLAGS += --check-symlink-times
$(shell [ -x $(UV) ] || rm -f $(UV))
$(UV): scripts/bootstrap-uv.sh
	@scripts/bootstrap-uv.sh $@
