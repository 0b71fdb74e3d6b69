# Each target is one `python -m scripts` call; what it does is said by `make help`.
PYTHON ?= python3
RUN := "$(PYTHON)" -m scripts
.DEFAULT_GOAL := help
# In the order of the command line, also with -j: each target has its own jobs, and `build` needs what `apply` leaves.
.NOTPARALLEL:
flag = $(if $(filter-out 0,$($(1))),$(2))
opt = $(if $($(1)),$(2) "$($(1))")

.PHONY: help drift matrix rebase rebase-continue rebase-abort doctor fetch apply refresh build env serve lint check test clean distclean pins rehearse ext toolchain audit census bundle

help:
	@$(RUN) help
doctor:
	@$(RUN) doctor $(call opt,TARGET,--target) $(call flag,JSON,--json)
.PHONY: first-hour
first-hour:
	@$(RUN) first-hour
fetch:
	@$(RUN) fetch $(call opt,VLLM,--version)
apply:
	@$(RUN) apply $(call opt,VLLM,--version) $(call flag,DROP_EDITS,--drop-edits) $(call flag,JSON,--json)
build:
	@$(RUN) build $(call opt,TARGET,--target)
ext:
	@$(RUN) ext
bundle:
	@$(RUN) bundle $(call opt,PYTHONS,--pythons) $(call opt,ADD,--add)
env:
	@$(RUN) env
serve:
	@$(RUN) serve
rehearse:
	@$(RUN) rehearse $(call flag,SHORT,--short)
refresh:
	@$(RUN) refresh $(call opt,PATCH,--patch)
lint:
	@$(RUN) lint
check:
	@$(RUN) check
.PHONY: platform-table
platform-table:
	@$(RUN) platform-table $(call flag,CHECK,--check)
test:
	@$(RUN) test $(call flag,STRICT,--strict)
clean:
	@$(RUN) clean $(call flag,DROP_EDITS,--drop-edits)
distclean:
	@$(RUN) clean --all $(call flag,DROP_EDITS,--drop-edits)
pins:
	@$(RUN) pins
drift:
	@$(RUN) drift $(VLLM) $(call opt,UPSTREAM_DIR,--dir) $(call opt,AGAINST,--against) $(call flag,JSON,--json)
rebase:
	@$(RUN) rebase $(VLLM) $(call opt,UPSTREAM_DIR,--dir) $(call opt,CHECKOUT,--checkout) $(call flag,ADOPT,--adopt)
rebase-continue:
	@$(RUN) rebase-continue $(call flag,DROP,--drop) $(call flag,ADOPT,--adopt)
rebase-abort:
	@$(RUN) rebase-abort
matrix:
	@$(RUN) matrix $(VLLM) $(call flag,JSON,--json)
toolchain:
	@$(RUN) toolchain $(call flag,JSON,--json)
audit:
	@$(RUN) audit $(call opt,WHEEL,--wheel)
census:
	@$(RUN) census $(call flag,CHECK,--check)
.PHONY: generate
generate:
	@$(RUN) generate $(call flag,CHECK,--check) $(call opt,MEASURED,--measured)
.PHONY: mutants
mutants:
	@$(RUN) mutants $(call opt,PART,--part) $(call opt,SAMPLE,--sample) $(call opt,SEED,--seed) $(call opt,MINUTES,--minutes) $(call flag,JSON,--json)
.PHONY: verify bench
verify:
	@$(RUN) verify $(ARGS)
bench:
	@$(RUN) bench $(ARGS)
