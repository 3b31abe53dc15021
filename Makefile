# `make train` and `make test` each set up what they need in .venv and then do their work.
# PYTHON picks the interpreter (3.11 or newer), TORCH what pip is asked for: with no NVIDIA GPU the tested release,
# whose CPU build comes from whichever index pip is configured to use; with one, whatever build matches the driver.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help train test docs lint check format browser clean

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
TORCH ?= $(if $(GPU),torch,torch==2.13.0)
TRITON ?= $(if $(GPU),,triton==3.9.0)
WORKERS ?= 2
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check

help:
	@echo "make train   train on the synthetic market with the defaults; ARGS='model=small …' adds overrides"
	@echo "make test    lint, type-check and test"
	@echo "make docs    build the documentation into build/site and check its links"
	@echo "make lint    ruff and mypy alone"
	@echo "make format  let ruff rewrite what it can"

train: .venv/.runtime
	.venv/bin/python train.py $(ARGS)

test: check browser
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(WORKERS) $(ARGS)

docs: .venv/.dev
	.venv/bin/python docs/site/build.py

lint: check

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/.dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# The report is looked at in a real browser; where there is none and it cannot be had, that test says so and skips.
browser:
	@if command -v chromium chromium-browser google-chrome >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  echo "installing Chromium for the browser test"; \
	  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium) \
	    >/dev/null 2>&1 </dev/null || echo "note: Chromium could not be installed; the browser test will skip"; \
	else echo "note: no Chromium here; the browser test will skip"; fi

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then echo "no Python 3.11 or newer with venv was found; set PYTHON=…" >&2; exit 1; fi
	$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing torch and the library into .venv; the first time this takes minutes and says nothing else"
	$(PIP) "$(TORCH)" $(TRITON)
	$(PIP) -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv dist build
