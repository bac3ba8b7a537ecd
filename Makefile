# The same targets on a laptop and in CI; each one installs what it needs into .venv first.
#
# PYTHON           the interpreter from which .venv is made; if it already has torch, that torch is used
# PYTEST_ARGS      passed to pytest, e.g. PYTEST_ARGS='tests/unit -x'
# PYTEST_WORKERS   number of test processes, 6 by default, since many tests wait; 0 runs one test after the other
# DEMO_ARGS        passed to `launch demo`, e.g. DEMO_ARGS='--nodes 3 --nproc 1'
# BENCH_ARGS       passed to `python -m bench`

PYTHON ?= python3
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 6
DEMO_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# The shellcheck and launch in .venv take precedence over others.
IN_VENV = PATH="$(CURDIR)/$(BIN):$$PATH"
# Some container images set PIP_CONSTRAINT, which would contradict constraints.txt.
INSTALL = PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# program:package, for the tests; sshd is in a directory that is often not on PATH.
DEBIAN := sshd:openssh-server ssh:openssh-client ip:iproute2 ps:procps slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge pdsh:pdsh crontab:cron cc:gcc zsh:zsh fish:fish chromium:chromium dockerd:docker.io podman:podman

.PHONY: help demo test test-quick test-pythons lint bench clean debian
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/installed  ## train on two hosts, each of which is this machine
	$(IN_VENV) $(BIN)/launch demo $(DEMO_ARGS)

test: $(VENV)/installed-dev debian  ## run all tests (PYTEST_ARGS, PYTEST_WORKERS)
	$(IN_VENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

test-quick: $(VENV)/installed-quick  ## run the tests that need no host, in under a minute
	$(IN_VENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) tests/unit $(PYTEST_ARGS)

test-pythons:  ## run the unit tests with each Python that is found
	.ci/pythons

lint: $(VENV)/installed-dev  ## ruff, mypy, shellcheck, and the words and links of documents
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python docs/lint.py
	$(IN_VENV) shellcheck .ci/run .ci/pythons docker/entrypoint.sh $$(find scripts examples -name '*.sh')

bench: $(VENV)/installed-dev  ## measure what README promises
	$(IN_VENV) $(BIN)/python -m bench $(BENCH_ARGS)

clean:  ## remove .venv, caches and builds; logs/ and outputs/ stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `extras` holds the extras that pip installs; it is written last, so an incomplete venv is made again.
# find_spec finds torch without importing it, which takes seconds.
# If PYTHON is itself in a venv, a new venv doesn't see its packages, so a .pth file names torch's directory.
$(VENV)/extras:
	rm -rf $(VENV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	|| { echo "make: Python 3.10 or newer is needed, not '$(PYTHON)'; fix: make PYTHON=python3.12" >&2; exit 1; }; \
	folder=$$($(PYTHON) -c 'from importlib.util import find_spec as find; \
		spec = find("torch"); print(spec.origin.rsplit("/", 2)[0] if spec and spec.origin else "")'); \
	option=; in_venv=$$($(PYTHON) -c 'import sys; print("yes" if sys.prefix != sys.base_prefix else "no")'); \
	if [ -n "$$folder" ]; then \
		echo "torch is in $$folder and is used as it is"; \
		if [ "$$in_venv" = no ]; then option=--system-site-packages; fi; \
	fi; \
	echo "$(PYTHON) -m venv $$option $(VENV)"; \
	$(PYTHON) -m venv $$option $(VENV) \
	|| { echo "make: '$(PYTHON)' can't make a venv (Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	if [ -z "$$folder" ]; then echo torch,yaml >$@; exit 0; fi; \
	if [ "$$in_venv" = yes ]; then \
		echo "$$folder" >"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"; \
	fi; \
	echo yaml >$@

$(VENV)/installed: $(VENV)/extras pyproject.toml constraints.txt
	$(INSTALL) -e ".[$$(cat $<)]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/extras pyproject.toml constraints.txt
	$(INSTALL) -e ".[$$(cat $<),dev]"
	@touch $@ $(VENV)/installed $(VENV)/installed-quick

# The unit tests need no torch, which is several hundred MB.
$(VENV)/installed-quick: $(VENV)/extras pyproject.toml constraints.txt
	$(INSTALL) -e ".[yaml,dev]"
	@touch $@

# Never fails: a test that lacks a program skips and says what to install.
debian:
	@missing=; \
	for pair in $(DEBIAN); do \
		PATH="$$PATH:/usr/sbin:/sbin" command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "make: tests will skip without$$missing (Debian: apt-get install$$missing)" >&2; exit 0; \
	fi; \
	echo "apt-get install$$missing"; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get update -qq; apt-get install -qq -y --no-install-recommends $$missing; } </dev/null >/dev/null \
	|| echo "make: apt-get install$$missing failed, tests will skip" >&2
