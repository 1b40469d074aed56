# imagebuilder: every task of the project, on a machine with only Python and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TESTS  ?= tests
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint type bench whole golden package clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with imagebuilder and what its tests need

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "imagebuilder needs Python 3.10 or newer; make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: setup  ## build the demo image and rehearse its acceptance: no Docker, no root, no GPU
	$(BIN)/imagebuilder build demo --builder direct
	$(BIN)/imagebuilder accept demo --runtime auto --if-needed

test: setup  ## all tests; those that need Docker are skipped with a reason where there is none
	$(BIN)/python -m pytest $(TESTS) -n $(JOBS)

lint: setup  ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup  ## mypy --strict
	$(BIN)/mypy

check: lint type test  ## exactly what CI runs

bench: setup  ## ratios against pip, uv and docker build, measured in one run
	$(BIN)/python -m benchmarks

whole: setup  ## the stacks of full size, built, loaded into engines and used: 10 GB to download, 25 GB of disk, a quarter of an hour
	IMAGEBUILDER_WHOLE=1 IMAGEBUILDER_REQUIRE_DOCKER=1 $(BIN)/python -m pytest tests/story/test_whole.py -n 0 -v

golden: setup  ## regenerate the files that tests compare with
	$(BIN)/python scripts/golden.py

package: setup  ## wheel and sdist into dist/
	$(BIN)/python -m build --outdir dist

clean:  ## remove what the targets above made here
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis images
