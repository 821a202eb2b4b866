# What a newcomer needs is `make run` and `make test`; both set up what they need and are quick when nothing changed.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
ROOMS := edge router storage gateways admin membership access wire mqtt conf jobs stratamq
ARGS ?=
WORKERS ?= 3
SEEDS ?= 100
MINUTES ?= 1
CASES ?= 1000000

COMPILED := $(shell $(PYTHON) -c "import runpy; \
	print(*(name.replace('.', '/') for name in runpy.run_path('conf/compiled.py')['COMPILED_MODULES']))")
COMPILED_SOURCES := $(wildcard $(addsuffix .py,$(COMPILED)) $(addsuffix .pxd,$(COMPILED)) edge/loop/*.pxd storage/*.c)
MYPY = $(BIN)/mypy $(ROOMS) tests bench
INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
# Each file of a package is checked against its hash, and nothing is taken that the list does not name.
LOCKED = $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r
LOCK = $(VENV)/lock/bin/uv pip compile -q -c constraints.txt --generate-hashes --universal --python-version 3.11 \
	--no-annotate --no-header --no-emit-index-url --upgrade

.PHONY: setup setup-dev setup-jobs run test lint types sim soak chaos bench mutants fuzz cases locks audit-packages clean

setup: $(STAMPS)/installed $(STAMPS)/compiled

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "StrataMQ needs Python 3.11 or newer"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "could not make $(VENV); on Debian: apt install python3-venv"; exit 1; }

$(STAMPS)/packages: locks/run.txt pyproject.toml | $(BIN)/python
	@echo "installing packages ..."
	@mkdir -p $(STAMPS)
	@$(LOCKED) locks/run.txt
	@touch $@

$(STAMPS)/compiled: $(STAMPS)/packages setup.py conf/compiled.py $(COMPILED_SOURCES)
	@echo "compiling $(words $(COMPILED)) modules ..."
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# The modules were compiled in place: the editable install only puts the folder on the path and makes the command.
$(STAMPS)/installed: $(STAMPS)/packages setup.py | $(STAMPS)/compiled
	@STRATAMQ_PURE=1 $(INSTALL) --no-build-isolation --no-deps -e . --config-settings editable_mode=compat
	@touch $@

setup-dev: setup $(STAMPS)/dev

$(STAMPS)/dev: locks/dev.txt $(STAMPS)/packages
	@echo "installing the tools for tests ..."
	@$(LOCKED) locks/dev.txt
	@touch $@

# PySpark is wanted by the jobs and their tests only, and it wants Java.
setup-jobs: setup $(STAMPS)/jobs

$(STAMPS)/jobs: locks/jobs.txt $(STAMPS)/packages
	@echo "installing PySpark ..."
	@$(LOCKED) locks/jobs.txt
	@touch $@

run: setup
	@$(BIN)/stratamq up $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MYPY)

types: setup-dev
	$(MYPY)

# Half of the tests wait for clusters and the other half for a processor: three workers keep two cores busy; 0 is none.
# What wants the terminal gets none either: a worker has no terminal. A test that hangs ends its worker, which names it.
# The types are read beside them: mypy takes one core for the better part of a minute.
ALONE = $(filter -s --capture=no --pdb --trace,$(ARGS))
test: setup-dev $(if $(shell command -v java),setup-jobs)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MYPY) > $(STAMPS)/mypy.txt 2>&1 & types=$$!; \
	echo "$(BIN)/pytest, and $(MYPY) beside it"; \
	$(BIN)/pytest -n $(if $(ALONE),0,$(WORKERS)) \
		$(if $(ALONE),,-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true) $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(STAMPS)/mypy.txt; exit $$((tests ? tests : types))

# With SEED only the whole cluster is replayed: a seed means something else in each simulation.
sim: setup-dev
	$(if $(SEED),@:,$(BIN)/python -m tests.router.raft.simulate --seeds $(SEEDS) --mode safety)
	$(if $(SEED),@:,$(BIN)/python -m tests.router.raft.simulate --seeds $(SEEDS) --mode liveness)
	$(if $(SEED),@:,$(BIN)/python -m tests.membership.simulate --seeds $(SEEDS))
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.bridges.bridge_simulation --seeds $(SEEDS)0)
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.bridges.bridge_simulation --seeds $(SEEDS)0 --exactly-once)
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.datagrams.tree_simulation --seeds $(SEEDS)0)
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.federation.federation_simulation --seeds $(SEEDS)0)
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.federation.federation_simulation --seeds $(SEEDS) --mixed)
	$(if $(SEED),@:,$(BIN)/python -m tests.gateways.federation.federation_simulation --seeds $(SEEDS) --busy)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) $(ARGS)
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 200000 --stops $(ARGS))
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 300000 --hostile $(ARGS))
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 400000 --policy $(ARGS))
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 500000 --drains $(ARGS))
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 600000 --looks $(ARGS))
	$(if $(SEED),@:,$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed 700000 --slow $(ARGS))

soak: setup-dev
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

chaos: setup-dev
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

bench: setup-dev
	$(BIN)/python -m bench $(ARGS)

mutants: setup-dev
	$(BIN)/python -m tests.mutants $(ARGS)

fuzz: setup-dev $(STAMPS)/fuzz
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

cases: setup-dev
	$(BIN)/python -m tests.access.rules.random_cases --count $(CASES) $(ARGS)

# atheris has wheels for some systems only; without it the fuzzing is random, and says so.
$(STAMPS)/fuzz: locks/fuzz.txt $(STAMPS)/packages
	@$(LOCKED) locks/fuzz.txt && touch $@ \
		|| echo "*** atheris cannot be installed here ***"

# What pyproject.toml asks for, and all that this asks for, by the versions of constraints.txt and the hash of each file.
# PySpark is no wheel, and large: what it asks for is named here.
locks: | $(BIN)/python
	@$(BIN)/python -m venv $(VENV)/lock && $(VENV)/lock/bin/python -m pip install -q --disable-pip-version-check uv
	@printf 'setuptools\nwheel\nCython\n' | $(LOCK) pyproject.toml - --extra admin -o locks/run.txt
	@$(LOCK) pyproject.toml --extra dev -o locks/dev.txt
	@printf 'atheris\n' | $(LOCK) --no-deps - -o locks/fuzz.txt
	@printf 'pyspark\npy4j\njinja2\nMarkupSafe\n' | $(LOCK) --no-deps - -o locks/jobs.txt
	@rm -rf $(VENV)/lock

# Known faults of the packages that a node and its tests run with. The scanner is the newest one, in a folder of its own.
audit-packages: | $(BIN)/python
	@$(BIN)/python -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install -q --disable-pip-version-check pip-audit \
		|| { echo "*** pip-audit cannot be installed here: nothing was looked at ***"; exit 2; }
	@for lock in run dev jobs; do echo "locks/$$lock.txt:"; \
		$(VENV)/audit/bin/pip-audit --strict -s osv --disable-pip --require-hashes --progress-spinner off -r locks/$$lock.txt \
		> $(VENV)/audit/found.txt 2>&1 && tail -1 $(VENV)/audit/found.txt && continue; \
		grep -q '^Found [0-9]* known' $(VENV)/audit/found.txt && cat $(VENV)/audit/found.txt && exit 1; \
		tail -1 $(VENV)/audit/found.txt; \
		echo "*** the database of known faults did not answer: nothing is known of locks/$$lock.txt ***"; exit 2; done

clean:
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(STAMPS)/compiled
	rm -f $(addsuffix .c,$(COMPILED))
	find $(ROOMS) \( -name '*.so' -o -name __pycache__ \) -prune -exec rm -rf {} +
