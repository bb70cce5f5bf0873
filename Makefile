# Every target makes what it needs: the virtual environment, the pinned packages, the kernels.
PYTHON ?= python3
# The tools come from .venv even where CMake or Ninja is installed.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --progress-bar off
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4
DEPS := .venv/.dependencies
INSTALLED := .venv/.installed
CPP := src/spgrad/kernels/cpu/*.cpp src/spgrad/kernels/cpu/*.h

.PHONY: demo test reference coverage fuzz fuzz-files mutants lint lint-python lint-types lint-cpp format bench bench-peers asan kernels clean
.DEFAULT_GOAL := kernels

$(DEPS): requirements/dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements/dev.txt
	touch $@

# The editable install is the pure one: CMake puts the library into the source tree.
$(INSTALLED): pyproject.toml $(DEPS)
	SPGRAD_NO_EXT=1 $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

build/cpu/build.ninja: $(DEPS)
	cmake -S . -B build/cpu -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING
	touch $@

# Ninja knows which files a kernel depends on, so it is always asked; it answers at once.
ifdef SPGRAD_NO_EXT
kernels: $(INSTALLED)
else
kernels: $(INSTALLED) build/cpu/build.ninja
	cmake --build build/cpu -- --quiet
endif

demo: kernels
	$(BIN)/python -m spgrad demo

test: kernels
	$(PYTEST)

# Without the compiled library; needs no compiler. The tests of the kernels compare both backends
# with one another and with NumPy or dense torch, so what is asked here is that every operation
# works on the references: its value, layout and gradient, and what is built on the operations.
ON_REFERENCES := $(addprefix tests/,test_construct.py test_demo.py test_interop.py test_properties.py \
  test_tensor.py test_support.py::test_value_layout_and_gradient test_support.py::test_matmul_on_the_zoo)
reference: $(INSTALLED)
	SPGRAD_NO_EXT=1 $(PYTEST) $(ON_REFERENCES)

SEED ?= 0

# Random programs against dense torch: `make fuzz N=100000 SEED=7`. Those that fail are printed,
# made small. tests/test_program_fuzz.py runs some thousand of seed 0.
fuzz: N ?= 10000
fuzz: kernels
	PYTHONPATH=tests $(BIN)/python -m fuzz $(N) --seed $(SEED)

# N mutated files of each format that spgrad.io reads; what is found lies in build/fuzz-files.
fuzz-files: N ?= 1000
fuzz-files: kernels
	$(BIN)/python tests/fuzz_files.py --n $(N) --seed $(SEED) --keep build/fuzz-files

# Which lines of Python the suite executes, and which tests execute each line, in build/coverage.
coverage: kernels
	$(BIN)/python -m mutants.reach
	$(PYTEST) --cov --cov-config=mutants/coverage.ini --cov-context=test \
	  --cov-report=term-missing:skip-covered --cov-fail-under=98

# N random changes of the Python code, each of which a test has to notice.
mutants: N ?= 200
mutants: kernels
	test -f build/coverage/data || $(MAKE) coverage
	$(BIN)/python -m mutants -n $(N) --seed $(SEED)

lint: lint-python lint-types lint-cpp

lint-python: $(DEPS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: $(DEPS)
	$(BIN)/pyright

lint-cpp: $(DEPS)
	$(BIN)/clang-format --dry-run -Werror $(wildcard $(CPP))

format: $(DEPS)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(wildcard $(CPP))

bench: kernels
	$(BIN)/python -m benchmarks

# The libraries that are compared besides torch and SciPy; those that are absent are named.
bench-peers: $(DEPS)
	$(PIP) --no-deps -r requirements/bench.txt

# The sanitized library is installed apart; -S keeps the editable install out of sight. libstdc++
# is preloaded too, or AddressSanitizer looks for __cxa_throw before there is one. Uncaptured (-s),
# the report of a process that it ends is seen, under the name of the test (-v).
asan: $(INSTALLED)
	CMAKE_ARGS="-DSPGRAD_SANITIZE=ON" SKBUILD_BUILD_DIR=build/asan/cmake \
	  $(PIP) --no-deps --no-build-isolation --upgrade --target build/asan/site .
	ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
	  PYTHONPATH="build/asan/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  $(BIN)/python -S -m pytest -s -v tests/test_fuzz.py

clean:
	rm -rf build dist .venv .pytest_cache .ruff_cache .hypothesis src/spgrad/kernels/libspgrad_cpu.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
