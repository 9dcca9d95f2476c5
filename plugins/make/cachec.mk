# cachec for GNU Make 4.0 or later:  include $(shell cachec config --make-include)
#
#   $(eval $(call cachec_program,OUTPUT,INPUT,COMPILER,OPTIONS,WEIGHTS,EXEC_OPTIONS))
#
# A rule that makes OUTPUT by  COMPILER INPUT -o OUTPUT OPTIONS  behind the cache. WEIGHTS: files of weights, each
# FILE, FILE=content, FILE=opened or FILE=name (as `cachec exec --weights`; one keyed by name starts no build).
# EXEC_OPTIONS: further options of `cachec exec`, such as --strip. In a rule of your own:
#
#   %.vmfb: %.mlir ; $(CACHEC_EXEC) -- iree-compile $< -o $@
#
# The rule of `cachec_program` leaves the time stamp of an OUTPUT that has its content already (`--restat`), so that what
# depends on it is not made again. To Make, OUTPUT then looks old for ever; so the rule makes OUTPUT.stamp beside it, which
# is new. It is made again where OUTPUT has gone, and when the compiler's executable is newer. In a rule of your own each
# output is new after each call.
#
# CACHEC: the command. CACHEC_DIR and the other settings are exported as the environment has them.
CACHEC ?= cachec
CACHEC_EXEC = $(CACHEC) exec

_cachec_path = $(patsubst %=content,%,$(patsubst %=opened,%,$(filter-out %=name,$(1))))
_cachec_tool = $(wildcard $(shell command -v $(1)))

define cachec_program
$(1): $(1).stamp
	@:
$(if $(wildcard $(1)),,.PHONY: $(1).stamp)
$(1).stamp: $(2) $(call _cachec_path,$(5)) $(call _cachec_tool,$(3))
	@mkdir -p $$(@D)
	$$(CACHEC_EXEC) --restat $(strip $(6) $(addprefix --weights ,$(5)) --) $(3) $(2) -o $(1) $(4)
	@touch $$@
endef
