# The commands one uses. `make VENV=path` takes another environment than .venv.
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: test test-long smoke check format docs ci gpu

test:
	$(BIN)/pytest

test-long:
	$(BIN)/pytest -m 'not slow'

smoke:
	$(BIN)/pytest -n0 -q tests/test_layering.py tests/unit/core/test_errors.py tests/unit/core/test_target.py tests/unit/ir

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/size.py
	$(BIN)/mypy

format:
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

docs:
	$(BIN)/mkdocs build --strict

ci:
	.ci/run

# A failed test stops no measurement: time on a GPU is scarce.
gpu:
	$(BIN)/pip install -q -e '.[cuda,test,torch]'
	-$(BIN)/pytest -n0 -rs -m gpu
	$(BIN)/python -m benchmarks.gpu --budget 600 --out benchmarks/results/gpu.jsonl
