# Every target works from nothing on a fresh Debian machine as root, and is quick the second time.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
DATA ?=
SOURCE ?=
KEEP ?=
ARGS ?=
# Most tests wait for processes; each worker keeps a fifth of a processor busy.
PARALLEL := --numprocesses 8 --dist loadfile --no-loadscope-reorder
# Images of containers set it; the thousands of processes of the tests would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup data demo compiled test test-all check fix bench torture dist bundle deb packages image clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready  ## system packages and the virtual environment

.venv/ready: pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup
	@touch $@

.venv/torch: .venv/ready scripts/setup-torch
	@scripts/setup-torch
	@touch $@

data:
	@[ -z "$(DATA)" ] || [ -d "$(DATA)" ] || { echo "demo: DATA=$(DATA) is not a directory" >&2; exit 2; }

demo: data .venv/torch  ## mount an embedded server's shards, look around, train, write, unmount (DATA=DIR: your pictures; SOURCE=URL: mount that instead; KEEP=1: leave the mount)
	@$(BIN)/python -m demo $(if $(DATA),--data "$(DATA)") $(if $(SOURCE),--source "$(SOURCE)") $(if $(KEEP),--keep)

.venv/programs: .venv/torch pyproject.toml
	@echo "aisfs setup: installing the programs of tests/programs into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group programs
	@touch $@

.venv/azurite/ready: .venv/ready scripts/setup-azurite
	@scripts/setup-azurite
	@touch $@

# Else each worker would compile all modules of a new checkout.
compiled: .venv/ready
	@[ -d tests/mount/__pycache__ ] || \
	  printf '%s\n' tests/mount --ignore=tests/mount | xargs -P 2 -n 1 $(BIN)/pytest --collect-only -qq > /dev/null || true

test: .venv/programs .venv/azurite/ready compiled  ## the tests, on real mounts (AIS_ENDPOINT=URL: store and writing tests on that cluster too)
	@$(BIN)/pytest $(PARALLEL)

test-all: .venv/programs .venv/azurite/ready compiled  ## the server's own tests, foreign programs, clouds and recipes too, all combinations, with and without the fast path
	@$(BIN)/pytest $(PARALLEL) --all --both-ways

check: .venv/ready  ## lint, format, types, layers
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

fix: .venv/ready  ## what lint and format can mend themselves
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.venv/bench: .venv/torch pyproject.toml
	@echo "aisfs setup: installing the peers of the bench into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group bench
	@touch $@

bench: .venv/bench  ## measure beside peers, an hour and a half (ARGS=--quick: 4 minutes; ARGS=--write-docs: into docs/)
	@$(BIN)/python -m bench $(ARGS)

torture: .venv/ready  ## two mounts and curl write while everything fails; read it back (ARGS='--minutes 60'; AIS_ENDPOINT=URL: there)
	@$(BIN)/python -m tests.torture $(ARGS)

dist: .venv/ready  ## wheel and sdist; the wheel is installed and mounts, for each Python that is here
	@packaging/dist

build/frozen/aisfs/aisfs: dist packaging/freeze packaging/aisfs.spec packaging/entry.py
	@PYTHON=$(PYTHON) packaging/freeze

bundle: build/frozen/aisfs/aisfs  ## one file that needs only fuse3
	@packaging/bundle

deb: build/frozen/aisfs/aisfs  ## a package for Debian 12, Ubuntu 24.04 and later
	@packaging/deb

packages: bundle deb  ## all of them, tried in a plain Debian 12 (as root, 10 minutes)
	@packaging/chroot venv
	@packaging/chroot bundle
	@packaging/chroot deb

image: .venv/ready  ## the Dockerfile, built and tried in chroots without docker (as root, 5 minutes)
	@$(BIN)/python packaging/image.py

clean:  ## remove the virtual environment and all caches
	rm -rf .venv build dist .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
