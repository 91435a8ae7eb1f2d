# Everything is installed into .venv and nowhere else. Needed: Python 3.11 or newer with venv, git, make.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.installed
LOCK := atlctl/packaging/lock.txt
# pip shows its progress on a terminal only.
PIP := -m pip install --disable-pip-version-check $$([ -t 2 ] || echo --quiet)
# The tool that makes the site of docs/ has an environment of its own: the tests do without it.
SITE := build/site-tool
# Without compiled files each test process, and each command that a test starts, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-quick slow check lint format lock generate docs pictures bench score dist executable e2e soak test-install test-deps clean

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12

demo: $(VENV) ## a real failing torchrun job on this machine, and the main commands on it
	$(BIN)/atlctl demo

test: lint ## lint, then every test but the benchmarks; half an hour on two cores
	$(BIN)/python -m pytest -n 4 --dist worksteal --ignore=tests/benchmarks $(PYTEST)

test-quick: $(VENV) ## unit and property tests without the slow ones; a minute on two cores, for after each change
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" tests/unit tests/property

slow: $(VENV) ## measure which tests test-quick leaves out: tests/slow.txt; eight minutes, on a quiet machine
	$(BIN)/python -m pytest -n 0 --write-slow tests/unit tests/property

check: format ## format, lint, types, quick tests, and the counts lowered: for before a commit
	$(BIN)/mypy
	$(BIN)/python -m tests.support.budget --write
	$(BIN)/python -m tests.support.style --write
	$(MAKE) --no-print-directory test-quick

lint: $(VENV) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV) ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: ## choose anew the packages of .venv, of the executable (atlctl/packaging/lock.txt) and of the site; takes uv
	@command -v uv >/dev/null || { echo "error: uv is not installed; pipx install uv" >&2; exit 2; }
	uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --upgrade \
	  --custom-compile-command "make lock" pyproject.toml --output-file $(LOCK)
	echo zensical | uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --upgrade \
	  --custom-compile-command "make lock" - --output-file docs/site/requirements.txt

generate: $(VENV) ## write anew what is made: catalogues of messages, completion scripts, pages of commands, man pages, docs/llms.txt
	$(BIN)/python -m atlctl.packaging.messages --write
	$(BIN)/python -m atlctl.cli.table --write
	$(BIN)/python docs/site/build.py --llms

docs: $(SITE)/.installed ## the site of docs/ in both languages: build/site/index.html; links and anchors must be right
	$(SITE)/bin/python docs/site/build.py build/site

pictures: $(VENV) ## run the commands of docs/pictures again and draw what they print; two minutes
	$(BIN)/python -m tests.pictures $(PICTURES)

bench: $(VENV) ## measure, and fail where a promise on speed or memory is not kept
	$(BIN)/python -m pytest tests/benchmarks -s -o timeout=900

score: $(VENV) ## score the root cause on the corpus and on the cases of other launchers; the tables of docs/en/corpus.md
	$(BIN)/python -m tests.corpus.score

dist: $(VENV) ## sdist and wheel, into dist/
	$(BIN)/python -m atlctl.packaging dist dist

executable: $(VENV) ## one file that carries its own Python, its SBOM and list of licences, into dist/; takes a C compiler
	$(BIN)/python -m atlctl.packaging executable dist

e2e: $(VENV) ## tests in a real cluster; KUBECONFIG and ATLCTL_E2E_IMAGE must be set (docs/en/e2e.md)
	@test -n "$${KUBECONFIG:-}" || { echo "error: set KUBECONFIG, see docs/en/e2e.md" >&2; exit 2; }
	@test -n "$${ATLCTL_E2E_IMAGE:-}" || { echo "error: set ATLCTL_E2E_IMAGE, see docs/en/e2e.md" >&2; exit 2; }
	$(BIN)/python -m pytest tests/e2e -v $(E2E)

soak: $(VENV) ## repeat the demo, the property tests, faults of a cluster and of the smoke test for hours; adds to docs/en/soak.md
	$(BIN)/python -m tests.soak

test-install: $(VENV) ## make the executable, install the package and its extra into empty environments, run all there; three minutes
	PYTHON=$(PYTHON) bash tests/test-install.sh

test-deps: ## as root: Debian packages that some tests need (they are skipped without)
	bash tests/test-deps.sh

clean: ## remove the environment and all caches
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV): pyproject.toml $(LOCK)
	@echo "installing into .venv: a minute or two the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# An older pip is silent for half a minute while it installs.
	$(BIN)/python $(PIP) --upgrade 'pip>=25.1'
	$(BIN)/python $(PIP) --require-hashes --requirement $(LOCK)
	$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $@

$(SITE)/.installed: docs/site/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python $(PIP) --require-hashes --requirement $<
	@touch $@
