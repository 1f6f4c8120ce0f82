# Two commands: `make lab` shows the laboratory at work, `make test` proves it.
# Both set themselves up in .venv; with nothing changed that takes no time.
# In another order: `make test PYTEST=--random-order`, which says its seed.
# While you work: `make check` is lint, types and the quick tests, in under three minutes.
# The documentation as a site, to read offline: `make docs`, in build/site.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: lab test check docs setup browser format clean

lab: $(READY)
	$(BIN)/attnlab tour

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --dist loadfile $(PYTEST)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --quick --numprocesses auto --dist loadfile --durations 5

docs: $(READY)
	$(BIN)/python docs/website.py

setup: $(READY)
	@$(BIN)/python tests/page/chromium.py || true

# a Chromium of playwright's own, in its cache folder; without a browser those tests are skipped
browser: $(READY)
	$(BIN)/python tests/page/chromium.py || $(BIN)/playwright install chromium

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnlab needs Python 3.11 or newer; name one with: make PYTHON=python3.12 " + "$(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,peers,hf,data,track,plots,web,ray,docs]'
	touch $(READY)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
