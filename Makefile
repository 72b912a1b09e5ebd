# `make demo` and `make test` on a machine with python3 (3.11 or newer), git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo test check bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,plot,tune,dev]'
	touch $@

demo: install ## optimise a PyTorch attention module and a softmax, verified, on this CPU
	$(BIN)/leirgym optimize examples/modules.py:Attention --agent beam --budget 24
	$(BIN)/leirgym optimize examples/modules.py:Softmax --agent beam --budget 24

test: install ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

check: install ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install ## the tables of the README
	$(BIN)/leirgym bench

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
