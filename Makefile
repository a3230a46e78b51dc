# Everything runs in .venv, which the first target that needs it creates. Needs Python 3.11 to 3.13 and make.
#   make demo    install, diarize the recording that ships, print its turns and RTTM
#   make test    all tests but the slow ones: make test-slow compiles every GPU kernel for every capability
#   make check   lint, types and tests

FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(FITS)' 2>/dev/null && { echo "$$p"; break; }; done)
endif

VENV := .venv
BIN := $(VENV)/bin
# For mypy: the package as a wheel has it, with cli inside.
TREE := .mypy_cache/tree/diarize
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo setup test test-slow lint fmt type check clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed
	@$(BIN)/diarize run datasets/demo/dialogue.flac --format text,rttm

setup: $(VENV)/.dev

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fmt: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(VENV)/.dev
	rm -rf $(TREE) && mkdir -p $(TREE)
	ln -s "$(CURDIR)"/diarize/* "$(CURDIR)/cli" $(TREE)
	cd $(TREE)/.. && "$(CURDIR)/$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" -p diarize

check: lint type test

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "diarize needs Python 3.11, 3.12 or 3.13, and none was found;" \
		"install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c '$(FITS)' || { echo "diarize needs Python 3.11, 3.12 or 3.13; $(PYTHON) is" \
		"$$("$(PYTHON)" --version 2>&1); name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo "could not create $(VENV);" \
		"on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	$(PIP) install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml
	$(PIP) install -q -e ".[dev]"
	@touch $@ $(VENV)/.installed
