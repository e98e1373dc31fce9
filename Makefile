# Thin on purpose: meson builds, tools/setup.sh installs, tools/run_tests.py tests.
FUZZ_SECONDS ?= 30
PY = .venv/bin/python

help:           ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup:          ## system packages, .venv, our package; a second when nothing changed
	@tools/setup.sh

demo: setup     ## train a small model on 2 workers of this machine
	@PATH="$(CURDIR)/.venv/bin:$$PATH" OMP_NUM_THREADS=1 \
	    horovodrun -np 2 python examples/pytorch/image_classifier.py

test: setup     ## everything that has to pass before a change lands (15 minutes, 2 cores)
	@$(PY) tools/run_tests.py

test-long:      ## the long suites: fuzzing 10 minutes a target, soak, all faults, models
	@tools/setup.sh long
	@$(PY) tools/run_tests.py --long

bench:          ## benchmarks against the peers that are installed
	@tools/setup.sh bench
	@bench/run

asan: setup     ## all C tests under AddressSanitizer and UBSan
	@$(PY) tools/run_tests.py --stage asan

tsan: setup     ## all C tests under ThreadSanitizer
	@$(PY) tools/run_tests.py --stage tsan

fuzz: setup     ## every fuzz target for FUZZ_SECONDS (30)
	@$(PY) tools/run_tests.py --stage fuzz --fuzz-seconds $(FUZZ_SECONDS)

clean:          ## remove what was built; .venv stays
	@rm -rf build build-* dist

.PHONY: help setup demo test test-long bench asan tsan fuzz clean
