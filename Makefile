# make demo   install, train twice on a local cluster, report, serve the dashboard
# make test   install, run the tests
# The first of these that runs and is new enough.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Test processes; the tests of real clusters start several processes each.
JOBS ?= 2

.PHONY: demo test lint bench samples clean

demo: $(VENV)
	$(BIN)/deepinsight demo

test: $(VENV)
	$(BIN)/deepinsight kernels build
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
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.kernels --build
	$(BIN)/python -m benchmarks.synchronization

# The runs of `deepinsight dashboard sample_runs/`; logs and checkpoints do not belong to them.
samples: $(VENV)
	rm -rf sample_runs/async sample_runs/sync sample_runs/demo
	HEADLESS=1 $(BIN)/deepinsight demo --runs-dir sample_runs --steps 800 --trace-every 200
	rm -rf sample_runs/demo/*/logs sample_runs/demo/*/checkpoints
	mv sample_runs/demo/async sample_runs/demo/sync sample_runs
	rm -rf sample_runs/demo
	find sample_runs -name '.*lock' -delete

$(VENV): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later found. Install one, or name it: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $(VENV)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
