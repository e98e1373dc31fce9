# Thin on purpose: meson builds, tools/setup.sh installs, tools/run_tests.py tests.
FUZZ_SECONDS ?= 30
PY = .venv/bin/python

help:           ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup:          ## system packages, .venv, our package; a second when nothing changed
	@tools/setup.sh

demo:           ## train a small model on 2 workers of this machine
	@tools/setup.sh demo
	@PATH="$(CURDIR)/.venv/bin:$$PATH" OMP_NUM_THREADS=1 \
	    horovodrun -np 2 python examples/pytorch/image_classifier.py

test: setup     ## everything that has to pass before a change lands (half an hour, 2 cores)
	@$(PY) tools/run_tests.py

test-long:      ## the long suites: fuzzing 10 minutes a target, soak, all faults, models
	@tools/setup.sh long
	@$(PY) tools/run_tests.py --long

fresh:          ## make demo and make test in a bare Debian root, as a newcomer's machine has it
	@tools/setup.sh fresh
	@tools/fresh.sh

bench:          ## benchmarks against the peers that are installed; drawings in build/plots
	@tools/setup.sh bench
	@bench/run --json build/bench.jsonl
	@$(PY) bench/plot.py build/bench.jsonl build/plots
	@$(PY) bench/scale

wheel:          ## dist/*.whl for every CPython from 3.10 on: no compiler needed to install it
	@tools/setup.sh build
	@tools/wheel.sh

docs:           ## the documentation site, in build/docs; warnings are errors
	@tools/setup.sh docs
	@$(PY) tools/gen_api.py --check
	@$(PY) -m mkdocs build --strict
	@echo "docs: build/docs/index.html"

asan: setup     ## all C tests under AddressSanitizer and UBSan
	@$(PY) tools/run_tests.py --stage asan

tsan: setup     ## all C tests under ThreadSanitizer
	@$(PY) tools/run_tests.py --stage tsan

fuzz: setup     ## every fuzz target for FUZZ_SECONDS (30)
	@$(PY) tools/run_tests.py --stage fuzz --fuzz-seconds $(FUZZ_SECONDS)

clean:          ## remove what was built; .venv stays
	@rm -rf build build-* dist

.PHONY: help setup demo test test-long fresh bench wheel docs asan tsan fuzz clean
