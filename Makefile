# Each target sets up what it needs; .venv is made once and again only when setup.cfg or constraints.txt change.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS ?= test
TEXT ?=

.PHONY: install demo test check bench clean

install: .venv/.installed

.venv/.installed: setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: install
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: install
	$(BIN)/python benchmarks/data.py $(if $(TEXT),--text=$(TEXT))

clean:
	rm -rf .venv demo build dist *.egg-info
