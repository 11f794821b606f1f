# Each target sets up what it needs; an environment is made once, and again only when the files that name its packages change.
PYTHON ?= python3
BIN := .venv/bin
ORACLE := .venv-oracle/bin
OPTIMUM := .venv-optimum/bin
EXTRAS ?= test
TEXT ?=
PAIRS ?=
TASKS ?=
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' bert_gpu/__init__.py)
PIP_QUIETLY := -m pip install --quiet --disable-pip-version-check
# Tests compile in a quarter less time.
HASTY := XLA_FLAGS="--xla_backend_optimization_level=0 $$XLA_FLAGS"

.PHONY: install oracle optimum transformers-js browser strace tmux demo test test-long check release bench record proof speedrun faults golden docs docs-check clean

install: .venv/.installed

.venv/.installed: setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_QUIETLY) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# What tests compare with: torch, transformers, sentence-transformers, datasets, datasketch, rensa and jax, apart from everything else.
oracle: .venv-oracle/.installed

.venv-oracle/.installed: constraints-oracle.txt
	$(PYTHON) -m venv .venv-oracle
	$(ORACLE)/python $(PIP_QUIETLY) --requirement constraints-oracle.txt
	@touch $@

# sentence-transformers with its ONNX backend, which is not for the oracle's transformers 5.
optimum: .venv-optimum/.installed

.venv-optimum/.installed: constraints-optimum.txt
	$(PYTHON) -m venv .venv-optimum
	$(OPTIMUM)/python $(PIP_QUIETLY) --requirement constraints-optimum.txt
	@touch $@

# transformers.js. Its packages contain their programs for CPUs; their scripts, which fetch others, do not run.
transformers-js: build/transformers_js/.installed

build/transformers_js/.installed: tests/interop/package.json
	@command -v npm > /dev/null || apt-get install --yes --quiet=2 nodejs npm
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --prefix $(@D) --ignore-scripts --no-audit --no-fund --no-package-lock --silent
	@touch $@

# What a page of TensorBoard is looked at with.
browser:
	@command -v chromium chromium-browser google-chrome > /dev/null || \
		if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium > /dev/null; \
		else echo "no Chromium: install one (apt-get install chromium), or the test of TensorBoard's page fails"; fi

demo: install
	$(BIN)/python examples/demo.py

# All laws; XLA compiles without optimisation, which it spends much of their time on.
test: install
	$(HASTY) $(BIN)/python -m pytest -m "not long" --durations=10

# Oracles, benchmarks in their smallest form, the documents' commands, terminal, browser, scale, long faults.
# A test that is skipped there fails.
test-long: install oracle optimum transformers-js browser strace tmux .venv/.docs-installed
	BERT_GPU_ORACLE_PYTHON=$(CURDIR)/$(ORACLE)/python BERT_GPU_JAX_PYTHON=$(CURDIR)/$(ORACLE)/python \
		BERT_GPU_OPTIMUM_PYTHON=$(CURDIR)/$(OPTIMUM)/python BERT_GPU_NODE_FOLDER=$(CURDIR)/build/transformers_js \
		$(HASTY) $(BIN)/python -m pytest -m "long and not docs" --durations=10 --no-skips

# The documents as a site, build/docs/index.html; a link that leads nowhere fails it.
docs: install .venv/.docs-installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	@echo build/docs/index.html

.venv/.docs-installed: .venv/.installed
	$(BIN)/python $(PIP_QUIETLY) --constraint constraints.txt --editable '.[docs]'
	@touch $@

# Every command, flag, path and message in the documents: run where it can be, else held against what there is.
docs-check: docs oracle
	BERT_GPU_ORACLE_PYTHON=$(CURDIR)/$(ORACLE)/python $(BIN)/python -m pytest tests/test_documents.py tests/test_document_commands.py --durations=5 --no-skips

# What pretraining on real text is worth for tasks, about 3 hours: `make record TEXT=corpus.txt PAIRS=FOLDER`; resumes.
# TASKS=FOLDER judges on public tasks as well, which takes longer (benchmarks/record.py --help).
record: install
	$(BIN)/python benchmarks/record.py --text=$(or $(TEXT),sample_text.txt) --pairs=$(or $(PAIRS),examples/pairs) \
		--folder=build/record --json=build/record/record.json --plots=build/record \
		$(if $(TASKS),--public_tasks=$(TASKS))

# What our models reach in public tests beside published numbers: `make proof DATA=FOLDER`, with GLUE in FOLDER/glue,
# BLiMP in FOLDER/blimp and the text of the recipe cpu2h in FOLDER/corpus.txt (benchmarks/proof.py --help); resumes.
proof: install
	$(BIN)/python benchmarks/proof.py --data=$(DATA) --folder=build/proof --json=build/proof/proof.json

# How soon a BERT is as good as the baseline: `make speedrun ENTRY=NAME FLAGS="--hidden_act=geglu"` runs both with
# three seeds, SIZE=large with TEXT=corpus.txt; dev/speedrun.md has the rules. Resumes.
speedrun: install
	$(BIN)/python benchmarks/speedrun.py --size=$(or $(SIZE),small) --text=$(or $(TEXT),sample_text.txt) \
		--entry="$(or $(ENTRY),quick)" --flags="$(FLAGS)" --data_flags="$(DATA_FLAGS)" \
		--folder=build/speedrun/$(or $(SIZE),small) --json=build/speedrun/$(or $(SIZE),small).json

# What may go wrong, tried on the commands as processes, within half an hour; prints a table of what they survived.
faults: install strace
	$(BIN)/python -m tests.faults

# What this tree's commands do beside those of another revision: `make golden BASE=REVISION`, after each commit of a
# restructuring; TIER=full takes minutes. It does not touch an environment that there is, which worktrees may share.
golden:
	@test -x $(BIN)/python || $(MAKE) install
	$(BIN)/python -m tests.golden $(or $(BASE),HEAD) --tier=$(or $(TIER),quick)

# Faults at system calls need it.
strace:
	@command -v strace > /dev/null || apt-get install --yes --quiet=2 strace

# What the console is looked at in.
tmux:
	@command -v tmux > /dev/null || apt-get install --yes --quiet=2 tmux

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# dist/: the source distribution and the wheel of the commit that is checked out, and a try of the wheel in an empty
# environment. The version is in bert_gpu/__init__.py; CHANGELOG.md and CITATION.cff must name it. Nothing is uploaded.
release: check
	$(BIN)/python $(PIP_QUIETLY) --constraint constraints.txt --editable '.[release]'
	@test -z "$$(git status --porcelain)" || { echo "commit your changes first: git status"; exit 1; }
	@grep -m 1 '^## ' CHANGELOG.md | grep -qxF "## $(VERSION)" || { echo "CHANGELOG.md: must begin with ## $(VERSION)"; exit 1; }
	@grep -qxF "version: $(VERSION)" CITATION.cff || { echo "CITATION.cff: needs the line version: $(VERSION)"; exit 1; }
	rm -rf dist build/release build/lib
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/python $(PIP_QUIETLY) --constraint constraints.txt dist/*.whl
	cd build/release && bin/bert-gpu --version && bin/bert-gpu data --quiet && bin/bert-gpu pretrain --num_train_steps=5 --quiet && \
		bin/bert-gpu classify --num_train_epochs=1 --quiet
	@echo "dist/ is ready: git tag v$(VERSION), push the tag, then $(BIN)/python -m twine upload dist/*"

bench: install
	$(BIN)/python benchmarks/data.py $(if $(TEXT),--text=$(TEXT))

clean:
	rm -rf .venv .venv-oracle .venv-optimum demo build dist *.egg-info
