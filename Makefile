# Every target makes what it needs: the virtual environment, the pinned packages, the kernels.
PYTHON ?= python3
# The tools come from .venv even where CMake or Ninja is installed.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# A compiler takes up to 0.8 GB, so there are at most eight at a time.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --progress-bar off
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4
DEMO_DEPS := .venv/.demo
DEPS := .venv/.dependencies
INSTALLED := .venv/.installed
CPP := $(addprefix src/spgrad/kernels/cpu/,*/*.cpp */*.h */*/*.cpp */*/*.h) packaging/*.cpp

.PHONY: demo test reference docs coverage fuzz fuzz-files mutants lint lint-python lint-types lint-cpp format bench bench-peers test-gpu bench-gpu sanitize coverage-cpp kernels wheel wheel-pure sdist test-wheels check-arm check-clang clean
.DEFAULT_GOAL := kernels

# The demo needs fewer packages than development, so it begins sooner.
$(DEMO_DEPS): requirements/demo.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r $<
	touch $@

$(DEPS): requirements/dev.txt $(DEMO_DEPS)
	$(PIP) -r $<
	touch $@

# The editable install is the pure one: CMake puts the library into the source tree.
$(INSTALLED): pyproject.toml $(DEMO_DEPS)
	SPGRAD_NO_EXT=1 $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# For this processor alone, which takes half as long; wheels are for every processor.
build/cpu/build.ninja: $(DEMO_DEPS)
	cmake -S . -B build/cpu -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING \
	  -DSPGRAD_THIS_PROCESSOR=ON
	touch $@
	@echo "Compiling the kernels takes about seven minutes on one core; only errors are shown."

# Ninja knows which files a kernel depends on, so it is always asked; it answers at once.
ifdef SPGRAD_NO_EXT
kernels: $(INSTALLED)
else
kernels: $(INSTALLED) build/cpu/build.ninja
	cmake --build build/cpu -- --quiet
endif

demo: kernels
	$(BIN)/python -m spgrad demo

test: kernels $(DEPS)
	$(PYTEST) --durations=20 --durations-min=10

# Without the compiled library; needs no compiler. Operations run on torch's own sparse kernels where
# torch has one (with SPGRAD_NO_NATIVE=1 on none), and on the references elsewhere. The tests of the
# kernels compare the backends with one another and with NumPy or dense torch. So these tests check that
# every operation works on these backends: its value, layout and gradient, and what uses the operations.
ON_REFERENCES := $(wildcard tests/core/test_construct*.py tests/core/test_tensor*.py) $(addprefix tests/, \
  core/test_interop.py core/test_scipy.py ops/layouts ops/solves ops/creation/test_edges.py leaves/test_demo.py \
  ops/products/test_algebra.py ops/products/test_product_refusals.py \
  torch_protocol/test_modules.py torch_protocol/test_repr.py \
  $(addprefix support/test_support.py::,test_value_layout_and_gradient test_matmul_on_the_zoo))
reference: $(INSTALLED) $(DEPS)
	SPGRAD_NO_EXT=1 $(PYTEST) $(ON_REFERENCES)

# The site, in build/docs. The build runs the notebooks and keeps their outputs in build/docs-cache.
DOCS := .venv/.docs
$(DOCS): requirements/docs.txt $(DEPS)
	$(PIP) -r requirements/docs.txt
	touch $@

docs: kernels $(DOCS)
	OMP_NUM_THREADS=1 PYTHONWARNINGS="ignore:IProgress not found" $(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs

SEED ?= 0

# Random programs against dense torch: `make fuzz N=100000 SEED=7`. Programs that fail are shrunk and
# printed. tests/support/test_program_fuzz.py runs some thousand programs of seed 0.
fuzz: N ?= 10000
fuzz: kernels $(DEPS)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(N) --seed $(SEED)

# Loads N mutated files of each format that spgrad.io reads; files that crash or hang go to
# build/fuzz-files.
fuzz-files: N ?= 1000
fuzz-files: kernels $(DEPS)
	$(BIN)/python tests/io/fuzz_files.py --n $(N) --seed $(SEED) --keep build/fuzz-files

# Which lines of Python the suite executes, and which tests execute each line, in build/coverage.
coverage: kernels $(DEPS)
	$(BIN)/python -m mutants.reach
	$(PYTEST) --cov --cov-config=mutants/coverage.ini --cov-context=test \
	  --cov-report=term-missing:skip-covered --cov-fail-under=98

# Makes N random changes of the Python code, and prints those that no test notices.
mutants: N ?= 200
mutants: kernels $(DEPS)
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

bench: kernels $(DEPS)
	$(BIN)/python -m benchmarks

# Installs the libraries that are compared besides torch and SciPy.
bench-peers: $(DEPS)
	$(PIP) --no-deps -r requirements/bench.txt

# Needs a torch with CUDA in .venv, and a GPU.
ON_GPU := $(BIN)/python -m pytest -n 4 -p on_gpu -W ignore
test-gpu: export PYTHONPATH := tests
test-gpu: export TRITON_INTERPRET := 0
test-gpu: kernels $(DEPS)
	SPGRAD_TEST_CHUNK=8 $(ON_GPU) $(wildcard tests/kernels/triton/test_*_launched.py)
	SPGRAD_TEST_GPU=operands $(ON_GPU) tests/support/test_zoo.py
	$(ON_GPU) tests/torch_protocol/devices/test_on_a_gpu.py

# Measures the Triton kernels on a GPU. Needs a torch with CUDA in .venv; without a GPU it says so.
bench-gpu: kernels $(DEPS)
	$(BIN)/python -m benchmarks.gpu

# A library of its own beside a copy of the Python files; -S keeps the editable install out of
# sight. libstdc++ is preloaded too, or AddressSanitizer looks for __cxa_throw before there is one.
# Without capturing (-s), the report that ends a process is printed below the name of the test (-v).
# pytest leaves out a file that is named beside its folder, so allocations.py is found by its pattern.
SANITIZED ?= tests/kernels tests/refusals/test_fuzz_constructors.py tests/refusals/test_fuzz_calls.py \
  tests/core/test_memory.py tests/support/test_program_fuzz.py
ON_COPY = PYTHONPATH="$(1):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
  $(BIN)/python -S -m pytest -o python_files="test_*.py allocations.py"
define COPY
	cmake -S . -B build/$(1) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING \
	  -DSPGRAD_$(2)=ON $(3) -DSPGRAD_LIBRARY_DIR=$(CURDIR)/build/$(1)/site/spgrad/kernels
	cmake --build build/$(1) -- --quiet
	(cd src && find spgrad -name "*.py" -o -path "*/cora/*" -type f) | tar -C src -cf - -T - | tar -C build/$(1)/site -xf -
endef

sanitize: WIDTH ?= 32
sanitize: $(INSTALLED) $(DEPS)
	$(call COPY,sanitize-$(WIDTH),SANITIZE,-DSPGRAD_WIDTH=$(WIDTH))
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
	  $(call ON_COPY,build/sanitize-$(WIDTH)/site) -n0 -s -v $(SANITIZED) -k 'not triton' # which is no C++

# How many lines of the kernels the suite runs, and which it does not run. The suite runs in one
# process, because the workers of xdist end without writing the counts of gcov.
COVERED ?= tests
coverage-cpp: $(INSTALLED) $(DEPS)
	$(call COPY,coverage-cpp,COVERAGE)
	find build/coverage-cpp -name '*.gcda' -delete
	$(call ON_COPY,build/coverage-cpp/site) -n0 -q $(COVERED)
	$(BIN)/python tests/kernels/every/lines_run.py build/coverage-cpp

# What is published, in dist/: the wheel for Linux, the one for every other system, and the sources.
# The compiler is the one of development: packaging/manylinux.cpp makes the library load in the oldest
# systems of the platform's tag, and auditwheel checks that. The objects stay in build/wheel, so a
# second wheel compiles only what has changed.
PACKAGING := .venv/.packaging
PLATFORM ?= manylinux_2_28_$(shell uname -m)
BUILD := $(BIN)/python -m build --no-isolation

$(PACKAGING): requirements/packaging.txt $(DEPS)
	$(PIP) -r requirements/packaging.txt
	touch $@

wheel: $(PACKAGING)
	rm -rf build/unrepaired
	$(BUILD) --wheel --outdir build/unrepaired -Cbuild-dir=build/wheel -Ccmake.define.SPGRAD_MANYLINUX=ON
	$(BIN)/auditwheel repair --plat $(PLATFORM) --only-plat --exclude libtorch_cpu.so -w dist build/unrepaired/*.whl

wheel-pure: $(PACKAGING)
	SPGRAD_NO_EXT=1 $(BUILD) --wheel --outdir dist

sdist: $(PACKAGING)
	$(BUILD) --sdist --outdir dist

# Installs each of them into an environment with torch alone, and tries it; compiles the sources anew.
test-wheels: wheel wheel-pure sdist
	$(BIN)/python packaging/try_dist.py dist/*

# The kernels compiled by clang, which Zig brings with the headers of other systems: for 64-bit ARM,
# and for x86-64. The objects are neither linked nor run.
CLANG := .venv/.clang
$(CLANG): requirements/clang.txt $(DEPS)
	$(PIP) -r requirements/clang.txt
	touch $@

check-arm: TARGET = aarch64
check-clang: TARGET = x86_64
check-arm check-clang: $(CLANG)
	cmake -S . -B build/$@ -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING \
	  -DCMAKE_TOOLCHAIN_FILE=packaging/clang.cmake -DSPGRAD_TARGET=$(TARGET) -DSPGRAD_OBJECTS=ON
	cmake --build build/$@ -- --quiet

clean:
	rm -rf build dist .venv .pytest_cache .ruff_cache .hypothesis src/spgrad/kernels/libspgrad_cpu.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
