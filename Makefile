# glowplug. The two that matter: `make demo` shows the main job, `make test` proves it.

PREFIX ?= /usr
DESTDIR ?=
CARGO ?= cargo

# The guest is static, so one binary serves every image of its architecture.
TARGET := $(shell uname -m)-unknown-linux-musl
# A comma that is no separator of arguments.
, := ,
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
GUEST := $(TARGET_DIR)/$(TARGET)/guest/glowplug
# Packed relative relocations, which musl resolves itself: 28 KB less. No unwind tables: 130 KB less.
GUEST_RUSTFLAGS := $(addprefix -C link-arg=-Wl$(,),-z$(,)pack-relative-relocs --no-eh-frame-hdr \
    -T$(,)$(CURDIR)/src/bin/glowplug.ld)
GUEST_MAX_BYTES := 1048576

.PHONY: all guest demo test boot lint bench install setup target clean

all: guest

# The only line that builds what is shipped.
guest: target
	RUSTFLAGS='$(GUEST_RUSTFLAGS)' $(CARGO) build --locked --profile guest --no-default-features --features guest \
	    --bin glowplug --target $(TARGET)

demo:
	@tests/setup build
	@CARGO='$(CARGO)' fixtures/demo

test: setup lint guest
	@size=$$(stat -c %s $(GUEST)) && echo "static binary: $$size bytes of at most $(GUEST_MAX_BYTES)" && \
	    test "$$size" -le $(GUEST_MAX_BYTES)
	$(CARGO) test --locked --all-features
	$(CARGO) test --locked --all-features --test boot

# Whole machines in QEMU. One boot alone: make boot BOOT=the_name_of_the_test
boot: setup guest
	$(CARGO) test --locked --all-features --test boot -- $(BOOT)

# Each feature compiles alone, and so does neither.
lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features guest -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features host -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --all-features --quiet
	! man --warnings -E UTF-8 -l -Tutf8 -Z man/glowplug.8 2>&1 >/dev/null | grep .
	shellcheck .ci/run dracut/50glowplug/module-setup.sh fixtures/demo fixtures/images/make tests/setup \
	    tests/boot/image tests/boot/roots/init tests/boot/roots/report tests/boot/dracut/*/*.sh

bench: guest
	GLOWPLUG='$(abspath $(GUEST))' $(CARGO) bench --locked --profile guest --bench guest

# dracut and systemd look below /usr. A drop-in that is for a unit of somebody else has that unit's name here.
DRACUT_MODULE := $(PREFIX)/lib/dracut/modules.d/50glowplug
UNITS := $(PREFIX)/lib/systemd/system

install: guest
	install -D -m 0755 $(GUEST) '$(DESTDIR)$(PREFIX)/bin/glowplug'
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/man/man8' man/glowplug.8
	install -D -m 0755 -t '$(DESTDIR)$(DRACUT_MODULE)' dracut/50glowplug/module-setup.sh
	install -D -m 0644 -t '$(DESTDIR)$(DRACUT_MODULE)' dracut/50glowplug/*.service dracut/50glowplug/*.conf
	install -D -m 0644 -t '$(DESTDIR)$(UNITS)' systemd/*.service
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/lib/systemd/system-preset' systemd/90-glowplug.preset
	for drop_in in systemd/*.conf; do name=$${drop_in##*/}; \
	    install -D -m 0644 "$$drop_in" '$(DESTDIR)$(UNITS)'/"$${name%.conf}.service.d/50-glowplug.conf" || exit 1; done

setup: target
	tests/setup

target:
	@if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx '$(TARGET)'; then \
	    rustup target add '$(TARGET)'; fi

clean:
	$(CARGO) clean
