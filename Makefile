# make setup | run | test | test-all | test-gpu | lint | docs | bench | bench-gpu | bench-check | clean   (VARIANT=gpu for CUDA machines)
VARIANT ?= cpu
ARGS ?=
LONG_TESTS ?= eighth
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready-$(VARIANT)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup run test test-all test-gpu lint docs bench bench-gpu bench-check clean
# Bytecode is written also where the environment turns that off: each start of a process is faster.
unexport PYTHONDONTWRITEBYTECODE
setup: $(READY)

# uv reads none of pip's configuration, so a local folder of wheels that pip knows is handed on.
# Bytecode is written here: importing torch and torchrec takes three times as long without it. Some
# packages ship templates that are no Python; the log has them.
$(READY): pyproject.toml
	test -e $@ || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet uv
	links="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-$$($(BIN)/python -m pip config get global.find-links 2>/dev/null)}}"; \
	links="$$(echo $$links | tr ' ' ',')"; \
	if [ -n "$$links" ]; then export UV_FIND_LINKS="$$links"; fi; \
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet -e '.[$(VARIANT),dev]'
	$(BIN)/python -m compileall -q -j 0 .venv/lib >$@.log 2>&1 || true
	touch $@

run: $(READY)
	$(BIN)/python -m runner $(ARGS)

test: $(READY)
	LONG_TESTS=$(LONG_TESTS) $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not gpu" $(ARGS)

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(ARGS)

test-gpu: $(READY)
	$(BIN)/python -m bench.gpu --check
	$(BIN)/python -m pytest -q -m gpu $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	test -x $(BIN)/sphinx-build || VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet -e '.[$(VARIANT),docs]'
	$(BIN)/python -m docs.build_site $(ARGS)

bench: $(READY)
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.limit
	$(BIN)/python -m bench.startup
	$(BIN)/python -m bench.sweep
	$(BIN)/python -m bench.sparse

bench-gpu: $(READY)
	$(BIN)/python -m bench.gpu $(ARGS)

bench-check: $(READY)
	$(BIN)/python -m bench.check $(ARGS)

clean:
	rm -rf .venv build *.egg-info
