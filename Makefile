# make demo   install, then find the circuit of the shipped checkpoint (offline after installing)
# make test   install, then lint, type check and run the tests
#             (test-all: also those that take long or start a cluster, and, in .venv-4, the fast
#             ones with TransformerLens 4;
#             BROWSER=install also installs Debian's chromium for the browser tests)
# make docs   build the pages with the API reference into site/ (offline after installing)
# make gallery  draw the pictures of docs/gallery.md again (needs chromium; 4 minutes, and 20 more
#             for SmolLM2's answers, which stay as they are where it is not installed)
# make bench  timings in turns with hand-written and naive code (an hour or two)

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PYTEST := OMP_WAIT_POLICY=PASSIVE $(RUN) -m pytest -n auto --maxprocesses 4 --dist loadfile -rs
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-4 test-all docs gallery bench clean chromium
DOCS := $(VENV)/.docs-installed

demo: $(INSTALLED)
	$(RUN) -m retrieval_interp.ablate --ckpt small --report report.html

test: $(INSTALLED) chromium
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(PYTEST) -m 'not slow and not cluster'

test-all: $(INSTALLED) chromium test-4
	$(PYTEST)

# The lock of requirements is the same but for TransformerLens. Tests of HookedTransformer are skipped.
test-4: $(VENV)-4/.installed
	OMP_WAIT_POLICY=PASSIVE $(VENV)-4/bin/python -m pytest -n auto --maxprocesses 4 \
	  --dist loadfile -m 'not slow and not cluster'

$(VENV)-4/.installed: pyproject.toml constraints.txt
	test -x $(VENV)-4/bin/python || $(PYTHON) -m venv $(VENV)-4
	sed 's/^transformer-lens==.*/transformer-lens==4.3.0/' constraints.txt > $(VENV)-4/constraints.txt
	$(VENV)-4/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
	  -c $(VENV)-4/constraints.txt --editable '.[test]'
	touch $@

# Without it the browser tests are skipped and say so.
chromium:
ifeq ($(BROWSER),install)
	command -v chromium || { apt-get update --quiet=2 && apt-get install --quiet=2 --yes \
	  --no-install-recommends chromium; } || echo "chromium cannot be installed here"
endif

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo site/index.html

$(DOCS): $(INSTALLED)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[docs]'
	touch $@

gallery: $(INSTALLED) chromium
	$(RUN) docs/gallery.py figures circuits answers

bench: $(INSTALLED)
	$(RUN) benchmarks/training_step.py
	$(RUN) benchmarks/ablations.py
	$(RUN) benchmarks/ablations.py --estimates --models small equations transformer-a --threads 1
	$(RUN) benchmarks/recovery.py --models 66
	$(RUN) benchmarks/recovery.py --models 24 --redundant
	$(RUN) benchmarks/paper_search.py

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --no-compile --disable-pip-version-check \
	  -c constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-4 build dist *.egg-info report.html site
