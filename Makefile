# Every target works from nothing on a fresh Debian machine as root, and is quick the second time.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
DATA ?=
ARGS ?=
# Images of containers set it; the thousands of processes of the tests would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check fix bench torture clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready  ## system packages and the virtual environment

.venv/ready: pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup
	@touch $@

.venv/torch: .venv/ready scripts/setup-torch
	@scripts/setup-torch
	@touch $@

demo: .venv/torch  ## mount an embedded server's shards, look around, train, unmount (DATA=DIR: your pictures)
	@$(BIN)/python -m demo $(if $(DATA),--data "$(DATA)")

.venv/programs: .venv/torch pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group programs
	@touch $@

test: .venv/programs  ## all tests, on real mounts (AIS_ENDPOINT=URL: store and writing tests on that cluster too)
	@$(BIN)/pytest --numprocesses 8 --dist loadfile --no-loadscope-reorder

check: .venv/ready  ## lint, format, types, layers
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

fix: .venv/ready  ## what lint and format can mend themselves
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.venv/bench: .venv/torch pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group bench
	@touch $@

bench: .venv/bench  ## measure beside peers, 20 minutes (ARGS=--quick: 3 minutes; ARGS=--write-docs: into docs/)
	@$(BIN)/python -m bench $(ARGS)

torture: .venv/ready  ## write while everything fails, read all of it back (ARGS='--minutes 60'; AIS_ENDPOINT=URL: there)
	@$(BIN)/python -m tests.torture $(ARGS)

clean:  ## remove the virtual environment and all caches
	rm -rf .venv .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
