# glowplug. The two that matter: `make demo` shows the main job, `make test` proves it.

PREFIX ?= /usr
DESTDIR ?=
CARGO ?= cargo

# The guest is static, so one binary serves every image of its architecture.
TARGET := $(shell uname -m)-unknown-linux-musl
# A comma that is no separator of arguments.
, := ,
GUEST := target/$(TARGET)/guest/glowplug
# Packed relative relocations, which musl resolves itself: 28 KB less. No unwind tables: 130 KB less.
GUEST_RUSTFLAGS := $(addprefix -C link-arg=-Wl$(,),-z$(,)pack-relative-relocs --no-eh-frame-hdr \
    -T$(,)$(CURDIR)/src/bin/glowplug.ld)
GUEST_MAX_BYTES := 1048576

.PHONY: all guest demo test lint bench install setup target clean

all: guest

# The only line that builds what is shipped.
guest: target
	RUSTFLAGS='$(GUEST_RUSTFLAGS)' $(CARGO) build --locked --profile guest --no-default-features --features guest \
	    --bin glowplug --target $(TARGET)

demo:
	@CARGO='$(CARGO)' fixtures/demo

test: setup lint guest
	@size=$$(stat -c %s $(GUEST)) && echo "static binary: $$size bytes of at most $(GUEST_MAX_BYTES)" && \
	    test "$$size" -le $(GUEST_MAX_BYTES)
	$(CARGO) test --locked --all-features

# Each feature compiles alone, and so does neither.
lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features guest -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features host -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --all-features --quiet
	shellcheck .ci/run fixtures/demo fixtures/images/make tests/setup

bench: guest
	GLOWPLUG='$(CURDIR)/$(GUEST)' $(CARGO) bench --locked --profile guest --bench guest

install: guest
	install -D -m 0755 $(GUEST) '$(DESTDIR)$(PREFIX)/bin/glowplug'

setup: target
	tests/setup

target:
	@if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx '$(TARGET)'; then \
	    rustup target add '$(TARGET)'; fi

clean:
	$(CARGO) clean
