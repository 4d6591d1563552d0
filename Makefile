# whitepanda: `make demo` and `make test` set up what they need on a fresh Debian 12.
PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
LAB := tests/lab

.PHONY: help demo test test-long check docs pictures format protos deb bench bench-host lab-up lab-down setup setup-dev setup-docs setup-lab clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

setup:
	@$(PYTHON) tools/bootstrap.py central top

setup-dev:
	@$(PYTHON) tools/bootstrap.py dev predict docs

setup-docs:
	@$(PYTHON) tools/bootstrap.py docs

# Debian packages of the lab where we are root on a Debian; elsewhere the tests that need them skip with the reason.
setup-lab:
	@$(LAB)/packages.sh

## make demo        central and four simulated hosts, live; ARGS=--stay: with a page, until Ctrl-C; ARGS=--json
demo: setup
	@.venv/bin/whitepanda demo $(ARGS)

## make test        everything under 8 minutes: unit, integration with real servers
test: setup-dev setup-lab
	@$(PY) tools/run_tests.py $(ARGS)

## make test-long   what takes longer
test-long: setup-dev setup-lab
	@$(PY) tools/run_tests.py --long

## make check       lint, format, types, import contracts, generated code
check: setup-dev
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@$(PY) tools/generate_protos.py --check
	@$(PY) tools/lock.py --check
	@$(PY) tools/generate_docs.py --check

## make docs        the site of docs/ in build/site, checked: no dead links, nothing asked of other hosts
docs: setup-docs
	@$(PY) tools/build_docs.py $(ARGS)

## make pictures    remake the pictures of README and docs/: of the demonstration, and of the page (needs Chromium)
pictures: setup-dev
	@$(PY) tools/demo_screenshots.py
	@$(PY) tools/screenshots.py

format: setup-dev
	@.venv/bin/ruff check --fix-only --quiet . ; .venv/bin/ruff format .

protos: setup-dev
	@$(PY) tools/generate_protos.py

## make deb         Debian packages of agent and central, in dist/ (Debian 12; docs/packages.md)
deb:
	@/usr/bin/python3 tools/build_debs.py $(ARGS)

## make bench       the hot paths and their bars; the last one builds a lake of up to 180 GB (ARGS: its options, e.g. --days 2)
bench: setup-dev setup-lab
	@$(PY) -m bench.agent_cost.tick && $(PY) -m bench.ingest.study && $(PY) -m bench.agent_cost.proc_cost && $(PY) -m bench.agent_cost.analysis && $(PY) -m bench.agent_cost.history
	@$(PY) -m bench.ingest.value_bytes && $(PY) -m bench.central_cost.page && $(PY) -m bench.history.study --beside-ingest $(ARGS)

## make bench-host  what watching 43 real VMs costs, beside collectd (root, the lab's packages, collectd-core, libyajl2)
bench-host: setup-dev setup-lab
	@$(PY) -m bench.agent_cost.host_cost $(ARGS)

## make lab-up      real libvirtd, Open vSwitch and three VMs on this machine (root); lab-down stops just those
lab-up: setup-lab
	@$(LAB)/up.sh

lab-down:
	@$(LAB)/down.sh

clean:
	rm -rf .venv build dist
