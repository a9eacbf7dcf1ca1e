# make demo   install, train twice on a local cluster, report, serve the dashboard
# make test   install, run the tests
PYTHON ?= $(firstword $(foreach name,python3.13 python3.12 python3.11 python3,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
# Test processes; the tests of real clusters start several processes each.
JOBS ?= 2

.PHONY: demo test lint bench clean

demo: $(VENV)
	$(BIN)/deepinsight demo

test: $(VENV)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations=10

lint: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)
	$(BIN)/python -m benchmarks.traces
	$(BIN)/python -m benchmarks.kill
	$(BIN)/python -m benchmarks.auc
	$(BIN)/python -m benchmarks.hooks

$(VENV): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No python3 found. Install Python 3.11 or later, or name it: make PYTHON=/path/to/python3 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11. Name a later one: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(VENV)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
