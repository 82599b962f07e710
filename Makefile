# `make demo` and `make test` are all that a visitor needs; the rest is for working on edged.
SHELL := /bin/bash
VENV  ?= .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
CUDA  := $(VENV)/.cuda
LOCK   = $(shell $(BIN)/python -c 'import sys; print("py%d%d" % sys.version_info[:2])')
# Tests spend half of their time waiting for processes and sockets: one worker more than cores.
PROCESSES ?= $(shell echo $$(($$(nproc) + 1)))

.PHONY: help setup packages cuda demo test test-whole soak faults faults-long check format compile bench deb release image install system system-arm64 system-dist-upgrade system-image upgrade walk lock clean fuzz

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

setup: $(READY) ## make the environment and compile the kernels
$(READY): pyproject.toml $(wildcard requirements/py???.txt) deploy/setup.sh
	@bash deploy/setup.sh $(VENV)
	@touch $@

packages: ## install the programs that the tests need (as root), or name the command that does
	@bash deploy/test_packages.sh

cuda: $(CUDA) ## add NVIDIA's compiler and simulator, for the tests of GPU kernels
$(CUDA): $(READY) $(wildcard requirements/py???-cuda.txt)
	@bash deploy/cuda.sh $(VENV)
	@touch $@

demo: $(READY) ## run the main job on a real wind farm's records
	@bash deploy/java.sh
	@$(BIN)/edged demo

# Hundreds of processes import the same modules: compiled once.
test test-whole: export PYTHONDONTWRITEBYTECODE =
test: packages $(READY) $(CUDA) ## run all tests
	@[ build/spark.jsa -nt $(READY) ] || $(BIN)/python -m tests.spark.jvm
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

test-whole: ## run all tests, and their campaigns whole
	@$(MAKE) test PYTEST_ARGS="--whole $(PYTEST_ARGS)"

fuzz: $(READY) ## a million mutated inputs for each door that a peer reaches (half an hour of CPU time)
	@nice -n 15 $(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

check: $(READY) ## format, lint, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(READY) ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

compile: $(READY) ## compile the kernels into the cache
	@$(BIN)/edged compile

bench: $(READY) ## the benchmarks of the README
	@bash deploy/java.sh
	@mkdir -p build/bench
	@$(BIN)/edged bench e2e --json build/bench/e2e.json
	@$(BIN)/edged bench energy --json build/bench/energy.json --plot build/bench/energy.png
	@$(BIN)/edged bench idle --json build/bench/idle.json
	@$(BIN)/edged bench spark --json build/bench/spark.json
	@$(BIN)/edged bench durability --json build/bench/durability.json
	@$(BIN)/edged bench join --json build/bench/join.json --plot build/bench/join.png

faults: $(READY) ## break a whole system in every way and count what is lost (as root; 6 to 8 minutes)
	@bash deploy/test_packages.sh faults
	@$(BIN)/python -m tests.campaign --json build/faults.json $(FAULTS_ARGS)

faults-long: $(READY) ## the same again and again with other seeds (four hours)
	@bash deploy/test_packages.sh faults
	@$(BIN)/python -m tests.campaign --minutes 240 --json build/faults.json $(FAULTS_ARGS)

soak: $(READY) ## half an hour of steady load: memory, descriptors, threads and files stay flat
	@mkdir -p build
	@$(BIN)/edged bench soak --json build/soak.json --plot build/soak.png

deb: $(READY) ## build the Debian package of an architecture (ARCH=amd64 or arm64)
	@ARCH=$(ARCH) deploy/debian/build.sh $(VENV)

release: $(READY) ## both packages, SBOMs and SHA256SUMS, signed with GPG_KEY or MINISIGN_KEY
	@deploy/release.sh $(VENV)

image: $(READY) ## make a container image from the package (as root; podman or docker)
	@deploy/image.sh "$$(ARCH=$(ARCH) deploy/debian/build.sh $(VENV) | tail -n 1)"

install: $(READY) ## install on this machine without a package (as root; DESTDIR for an image)
	@deploy/install.sh $(VENV) "$(DESTDIR)"

# The Debian that `make system` boots, and its Python.
SUITE           ?= bookworm
PYTHON_bookworm := 3.11
PYTHON_trixie   := 3.13
# The processor of their kernels.
TARGET          := $(if $(filter aarch64,$(shell uname -m)),armv8-a,x86-64-v3)
system: $(READY) ## prove package and service in a booted Debian (as root; SUITE=trixie for Debian 13)
	@bash deploy/test_packages.sh system
	@VERSION="0.1.0+1 0.1.0+2" PYTHONS=$(PYTHON_$(SUITE)) LEVEL=1 TARGETS=$(TARGET) deploy/debian/build.sh $(VENV)
	@$(BIN)/python -m tests.system.booted --suite $(SUITE) \
	  build/edged_0.1.0+{1,2}_$$(dpkg --print-architecture).deb

system-arm64: $(READY) ## prove the arm64 package under qemu (as root; long; not in CI)
	@bash deploy/test_packages.sh arm64
	@VERSION="0.1.0+1 0.1.0+2" ARCH=arm64 LEVEL=1 deploy/debian/build.sh $(VENV)
	@$(BIN)/python -m tests.system.arm64 build/edged_0.1.0+1_arm64.deb build/edged_0.1.0+2_arm64.deb

system-dist-upgrade: $(READY) ## Debian 12 becomes Debian 13 under the package (as root; needs a network)
	@bash deploy/test_packages.sh system
	@$(BIN)/python -m tests.system.dist_upgrade \
	  "$$(VERSION=0.1.0+1 PYTHONS="3.11 3.13" LEVEL=1 TARGETS=$(TARGET) deploy/debian/build.sh $(VENV) | tail -n 1)"

system-image: $(READY) ## prove the container image under podman (as root)
	@deploy/image.sh "$$(VERSION=0.1.0+1 PYTHONS=3.11 LEVEL=1 TARGETS=$(TARGET) deploy/debian/build.sh $(VENV) | tail -n 1)"
	@$(BIN)/python -m tests.system.image build/edged_0.1.0+1_$$(dpkg --print-architecture).oci.tar

lock: ## resolve the lock files anew (needs uv on the PATH)
	@for v in 3.10 3.11 3.12 3.13; do lock=requirements/py$${v/./}; \
	  resolve="uv pip compile -q --universal --no-header --no-annotate --python-version $$v"; \
	  $$resolve --extra central --extra postgres --extra onnx --extra dev pyproject.toml -o $$lock.txt && \
	  $$resolve --extra cuda -c $$lock.txt pyproject.toml -o $$lock-cuda.txt || exit; done

upgrade: $(READY) ## neighbouring versions together: a wheel of an earlier commit beside this tree
	@$(BIN)/python -m tests.upgrade $(COMMIT)

walk: $(READY) ## type the first day's documents into a fresh Debian (as root)
	@bash deploy/test_packages.sh system
	@$(BIN)/python -m tests.system.walk

clean: ## remove the environment and everything built
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
