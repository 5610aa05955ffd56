# Two commands matter: `make run` does the main job, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin
SMOKE := outputs/smoke

.PHONY: run test lab check bench
.DELETE_ON_ERROR:

.venv/.installed: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shopskill needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: .venv/.installed
	$(BIN)/shopskill run params/embedded.yaml

test: check
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder
	rm -rf $(SMOKE)
	$(BIN)/shopskill run params/smoke.yaml
	$(BIN)/pytest -q -p no:cacheprovider --nbval $(SMOKE)

lab: .venv/.installed
	$(BIN)/jupyter lab --notebook-dir=notebooks

check: .venv/.installed
	$(BIN)/ruff check
	$(BIN)/mypy

bench: .venv/.installed
	$(BIN)/python bench/gate.py
	$(BIN)/python bench/agent.py
