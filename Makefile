# Two commands for a newcomer: `make demo` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3
ifeq ($(OS),Windows_NT)
  BIN := .venv/Scripts
else
  BIN := .venv/bin
endif
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

CATALOGUES := $(wildcard src/onecard/report/locales/*/LC_MESSAGES/*.po)

.PHONY: demo test test-long test-gpu lint clean

.venv/made:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'onecard needs Python 3.11 or newer; try: make PYTHON=python3.12')"
	$(PYTHON) -m venv .venv
	touch .venv/made

.venv/train: .venv/made pyproject.toml setup.py constraints.txt $(CATALOGUES)
	$(PIP) -e '.[train]'
	touch .venv/train

.venv/test: .venv/made pyproject.toml setup.py constraints.txt $(CATALOGUES)
	$(PIP) -e '.[train,test]'
	touch .venv/test .venv/train

demo: .venv/train
	$(BIN)/python -m onecard demo

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# modules are compiled once, not in each of the many processes, whatever the shell has set
test test-long: export PYTHONDONTWRITEBYTECODE =

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not long"

test-long: .venv/test
	ONECARD_RANDOM=1 $(BIN)/python -m pytest -m "not gpu"

# on a machine with a card: every CUDA path
test-gpu: .venv/test
	$(BIN)/python -m pytest -m gpu tests/gpu

clean:
	rm -rf .venv
