# Two commands: `make demo` and `make test`. Both create what they need; see README.md.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Another Python: make demo PYTHON=python3.12
PYTHON ?= python3
# An index with a CPU build of torch can be given: make demo FEDPREF_TORCH_INDEX=https://…
FEDPREF_TORCH_INDEX ?=
export FEDPREF_TORCH_INDEX

.PHONY: help demo smollm2 test test-all lint install clean

help:
	@echo "make demo      install, run the three arms on bundled synthetic data, show the result"
	@echo "make test      install, lint, type-check, run the tests (make test-all: the long ones too)"
	@echo "make smollm2   fetch a model of 135 million parameters for benchmarks (about a minute)"
	@echo "make clean     remove the environment and everything that runs left here"

$(INSTALLED): pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" sh scripts/install.sh $(VENV)
	@touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	@$(BIN)/fedpref demo

smollm2: $(INSTALLED)
	@$(BIN)/python benchmarks/smollm2.py

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: $(INSTALLED) lint
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

test-all: $(INSTALLED) lint
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) .fedpref runs sites .pytest_cache .mypy_cache .ruff_cache .hypothesis
