# glowplug. `make demo` shows the main use, and `make test` runs the tests. `make help` lists the targets.

PREFIX ?= /usr
DESTDIR ?=
CARGO ?= cargo

# The guest is static, so one binary serves every image of its architecture.
TARGET := $(shell uname -m)-unknown-linux-musl
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
GUEST := $(TARGET_DIR)/$(TARGET)/guest/glowplug
GUEST_MAX_BYTES := 1572864
CTL := $(TARGET_DIR)/release/glowplugctl
# Further tools of Cargo are compiled once for each user, in this folder.
TOOLS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/glowplug
DENY_VERSION := 0.20.2
DENY := $(TOOLS)/cargo-deny-$(DENY_VERSION)
CYCLONEDX_VERSION := 0.5.9
CYCLONEDX := $(TOOLS)/cargo-cyclonedx-$(CYCLONEDX_VERSION)
AFTERBURN_VERSION := 5.11.0
AFTERBURN := $(TOOLS)/afterburn-$(AFTERBURN_VERSION)

# `--version` prints the version and the commit. A tarball of `make dist` has the commit in a file; a clone gets the
# commit from git.
RELEASE := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
COMMIT := $(shell grep -v Format packaging/commit || git describe --always --dirty --exclude='*' --abbrev=12 2>/dev/null)
VERSION = $(RELEASE)$(if $(COMMIT), ($(COMMIT)))
# Tests do not depend on the commit, so a new commit must not cause a rebuild.
test slow boot bench: COMMIT :=

# Targets do not run in parallel, because each target alone uses all processors.
.NOTPARALLEL:

.PHONY: all help guest ctl demo check test slow test-all boot packages afterburn format clippy features architectures pages deny test-controller test-cluster chaos demo-controller bench-controller bench-scale bench-growth soak fuzz fuzz-controller bench dashboard dist rpm deb static-ctl static-controller image sbom release publish reproducible install install-guest install-ctl setup target clean

##@ Build

all: guest ctl ## build the guest and glowplugctl

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

# Packed relocations make the program 53 KB smaller. musl 1.2.5, which Rust has since 1.93, is the first version that applies
# them: with an older musl the program would crash.
PACKED := $(shell rustc --version | awk '{ split($$2, v, "."); if (v[2] >= 93) print "-Clink-arg=-Wl,-z,pack-relative-relocs" }')

# These lines build the guest that is shipped. With LINKED=dynamic, a distribution links the guest against its own C
# library, with its own flags in RUSTFLAGS.
ifneq ($(LINKED),dynamic)
guest: target ## build the static binary of the guest
	GLOWPLUG_VERSION='$(VERSION)' $(CARGO) rustc --locked --profile guest \
	    --no-default-features --features guest --bin glowplug --target $(TARGET) -- $(PACKED)
else
GUEST := $(TARGET_DIR)/guest/glowplug
guest:
	GLOWPLUG_VERSION='$(VERSION)' $(CARGO) build --locked --profile guest --no-default-features --features guest --bin glowplug
endif

# A static program for another architecture needs a compiler for the C code of its crates. It needs no linker other than
# the linker of the toolchain. The C code of ring needs no C library; the C code of SQLite and of jemalloc needs the
# headers of musl. The controller has jemalloc only on x86_64.
ARCHITECTURE := $(firstword $(subst -, ,$(TARGET)))
MUSL_CC := $(if $(filter $(shell uname -m),$(ARCHITECTURE)),musl-gcc,$(ARCHITECTURE)-linux-musl-gcc)
CONTROLLER_CC := $(if $(filter $(shell uname -m),$(ARCHITECTURE)),musl-gcc,$(ARCHITECTURE)-linux-gnu-gcc)
ifneq ($(ARCHITECTURE),$(shell uname -m))
export CARGO_TARGET_$(shell echo '$(subst -,_,$(TARGET))' | tr a-z A-Z)_LINKER := rust-lld
endif

ctl: ## build glowplugctl
	GLOWPLUG_VERSION='$(VERSION)' $(CARGO) build --locked --release --no-default-features --features ctl --bin glowplugctl

# Programs that a release publishes have no debug information.
STATIC_CTL := $(TARGET_DIR)/$(TARGET)/release/glowplugctl
static-ctl: target
	CC_$(subst -,_,$(TARGET))=$(MUSL_CC) CARGO_PROFILE_RELEASE_STRIP=true GLOWPLUG_VERSION='$(VERSION)' $(CARGO) build --locked --release \
	    --no-default-features --features ctl --bin glowplugctl --target $(TARGET)

##@ Try

demo: ## a drive to kernel arguments, and a pool to a drive
	@tests/setup build
	@CARGO='$(CARGO)' fixtures/demo

demo-controller: ## machines and claims of a cluster, on the API server of the tests
	@$(CARGO) test --locked --quiet $(CONTROLLER) --test demo

# Modules of tests/quick.rs that `make check` leaves out, because their tests run other programs or take long.
ASKING := cloud_init docs fuzz histories networkd readers

# The controller is a separate workspace, so that none of its dependencies reaches the guest. Its tests wait for servers
# half of the time, so the number of parallel tests is twice the number of processors. Tests that need a real API server
# run only by name.
CONTROLLER := --manifest-path controller/Cargo.toml
WAITING := $(shell echo $$(($$(nproc) * 2)))
# Parts of the names of slow tests of the controller: tests that repeat a history for each write or each right, a test
# with a hundred machines, and tests in which leaders change for a long time. These tests take two thirds of the time of
# all quick tests of the controller.
REPEATING := rights:: skew:: _each_write _refused_once_is a_hundred_machines no_machine_is_refused_during_an_upgrade

##@ Test

# This target needs a Rust toolchain. Some of its tests also need programs that `make setup` installs.
check: format clippy ## format, clippy, and the short tests that run no other program
	$(CARGO) test --locked --all-features --lib --bins --test quick -- $(ASKING:%=--skip %::)
	$(CARGO) test --locked $(CONTROLLER) --lib --test quick -- --test-threads=$(WAITING) $(REPEATING:%=--skip %)

# The five boots of `make test`, which show the main use.
STORY := ignition_fetches_over_the_dual_stack_network_of_the_drive a_vlan_is_on_a_bond_of_two_interfaces \
    a_broken_document_stops_the_boot_and_the_console_shows_the_error without_a_drive_the_default_applies \
    ignition_fetches_over_the_network_that_networkd_makes

test: setup format clippy pages guest test-controller ## the quick tests, the documentation, and five boots
	@size=$$(stat -c %s $(GUEST)) && echo "static binary: $$size bytes of at most $(GUEST_MAX_BYTES)" && \
	    test "$$size" -le $(GUEST_MAX_BYTES)
	$(CARGO) test --locked --all-features
	$(CARGO) test --locked --all-features --test slow -- --exact $(STORY:%=boot::%)

slow: setup features architectures deny demo-controller guest $(AFTERBURN)/bin/afterburn ## the tests that `make test` leaves out
	AFTERBURN=$(AFTERBURN)/bin/afterburn $(CARGO) test --locked --all-features --test slow -- --exact $(STORY:%=--skip boot::%)

test-all: test slow test-cluster ## all tests, also on a real API server

# Boots whole machines in QEMU. For one boot: make boot BOOT=the_name_of_the_test
boot: setup guest $(AFTERBURN)/bin/afterburn ## boots in QEMU, or one boot: BOOT=name
	AFTERBURN=$(AFTERBURN)/bin/afterburn $(CARGO) test --locked --all-features --test slow -- boot::$(BOOT)

packages: setup ## build the packages and check their content
	$(CARGO) test --locked --all-features --test slow -- packaging::

# Stock images have afterburn, so the tests run afterburn. It is compiled once for each user.
afterburn: setup guest $(AFTERBURN)/bin/afterburn ## ask afterburn about the documents of the host
	AFTERBURN=$(AFTERBURN)/bin/afterburn $(CARGO) test --locked --all-features --test slow -- afterburn:: boot::afterburn

test-controller: ## the controller's tests, on the API server of the tests
	$(CARGO) test --locked $(CONTROLLER) -- --test-threads=$(WAITING)

# The controller's scenarios against a real API server: the server in KUBEBUILDER_ASSETS, or else a server that is built
# once.
test-cluster: ## the controller's scenarios on a real API server: SCENARIO=name
	assets=$$(controller/tests/kube-apiserver) && \
	    KUBEBUILDER_ASSETS="$$assets" $(CARGO) test --locked $(CONTROLLER) --test cluster -- $(SCENARIO)

# Makes random operations and faults on a real API server and three replicas: make chaos MINUTES=15 SEED=1
MINUTES := 60
chaos: ## random operations and faults on a real API server: MINUTES=60 SEED=1
	tests/setup chaos
	assets=$$(controller/tests/kube-apiserver) && KUBEBUILDER_ASSETS="$$assets" MINUTES=$(MINUTES) $(if $(SEED),SEED=$(SEED)) \
	    $(CARGO) test --locked --quiet $(CONTROLLER) --test chaos

##@ Check

# fuzz/ and controller/ are separate workspaces, so each needs its own command.
format: ## check the format of the sources
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) fmt $(CONTROLLER) --check

# --all-targets leaves out the tests of the controller that run only by name.
clippy: ## check the code of both packages
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked $(CONTROLLER) --all-targets -- -D warnings
	$(CARGO) clippy --locked $(CONTROLLER) --test cluster --test chaos --test demo --test dashboard -- -D warnings

# Checks that the crate compiles with each feature alone, and without features. The lock files of fuzz/ and controller/
# must be current.
features: ## each feature alone
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features guest -- -D warnings
	for feature in host sqlite vsphere ctl; do \
	    $(CARGO) clippy --locked --no-default-features --features $$feature -- -D warnings || exit 1; done
	$(CARGO) clippy --locked --no-default-features --features vmware -- -D warnings
	$(CARGO) fetch --quiet --locked --manifest-path fuzz/Cargo.toml
	$(CARGO) fetch --quiet --locked $(CONTROLLER)

# The other architectures of KubeVirt. `rustup target add NAME` adds an architecture to the toolchain.
ARCHITECTURES := aarch64-unknown-linux-musl s390x-unknown-linux-gnu
architectures: ## the guest for the other architectures of KubeVirt
	for target in $(ARCHITECTURES); do \
	    if ! test -d "$$(rustc --print sysroot)/lib/rustlib/$$target/lib"; then \
	        echo "$$target: not in this toolchain"; continue; fi; \
	    $(CARGO) check --locked --no-default-features --features guest --bin glowplug --target $$target || exit 1; done

# Limit for the number of public items, because every public item must stay compatible: docs/stability.md.
PUBLIC_ITEMS_LIMIT := 125

# Checks of the documentation and of the shell scripts.
pages: ## the documentation, the manual pages and the shell scripts
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --all-features --quiet
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked $(CONTROLLER) --no-deps --quiet
	@items=$$(grep -o '<li><a href="[^#]' $(TARGET_DIR)/doc/glowplug/all.html | wc -l) && \
	    echo "public items of the library: $$items, expected fewer than $(PUBLIC_ITEMS_LIMIT)" && \
	    test "$$items" -lt $(PUBLIC_ITEMS_LIMIT)
	@rm -rf $(TARGET_DIR)/man
	@install -D -m 0644 -t $(TARGET_DIR)/man/man1 man/*.1 controller/man/*.1 && install -D -m 0644 -t $(TARGET_DIR)/man/man8 man/*.8 controller/man/*.8
	! for page in man/* controller/man/*; do page=$${page##*/}; MANPATH='$(abspath $(TARGET_DIR))/man' man --warnings -E UTF-8 -Tutf8 -Z \
	    "$${page##*.}" "$${page%.*}" 2>&1 >/dev/null; done | grep .
	shellcheck .ci/run .ci/release dracut/50glowplug/module-setup.sh fixtures/demo fixtures/images/make fuzz/run tests/setup \
	    packaging/image packaging/release tests/boot/image tests/boot/roots/init tests/boot/roots/report tests/boot/dracut/*/*.sh tests/readers/*.sh \
	    tests/networkd/batch tests/networkd/machine tests/network_manager/batch tests/afterburn/batch controller/tests/kube-apiserver controller/tests/promtool

# Checks licences, sources and duplicates of all linked crates: deny.toml. cargo-deny runs offline, so the crates are
# fetched before.
deny: $(DENY)/bin/cargo-deny ## licences and sources of all crates
	$(CARGO) fetch --quiet --locked
	$< --offline check licenses bans sources
	$(CARGO) fetch --quiet --locked $(CONTROLLER)
	cd controller && $(abspath $<) --offline check licenses bans sources

INSTALL_TOOL := CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --locked --debug
$(DENY)/bin/cargo-deny:
	$(INSTALL_TOOL) --no-default-features --version $(DENY_VERSION) --root $(DENY) cargo-deny

$(CYCLONEDX)/bin/cargo-cyclonedx:
	$(INSTALL_TOOL) --version $(CYCLONEDX_VERSION) --root $(CYCLONEDX) cargo-cyclonedx

$(AFTERBURN)/bin/afterburn:
	$(INSTALL_TOOL) --version $(AFTERBURN_VERSION) --root $(AFTERBURN) afterburn

# Fuzzes each target of fuzz/, or one target: make fuzz FUZZ=pools FUZZ_SECONDS=600. `make test` runs some thousands of
# inputs of each target: tests/fuzz.rs.
fuzz: ## fuzz the readers: FUZZ=target FUZZ_SECONDS=600
	tests/setup fuzz
	CARGO='$(CARGO)' fuzz/run $(FUZZ)

# Tests the controller's readers with objects of any content: make fuzz-controller VARIANTS=20000. `make
# test-controller` derives 250 objects of each kind. These tests run without the optimizations of a release, so that an
# overflow is a failure.
VARIANTS := 100000
fuzz-controller: ## objects of any content: VARIANTS=100000
	HOSTILE_VARIANTS=$(VARIANTS) $(CARGO) test --locked $(CONTROLLER) --lib -- content
	HOSTILE_VARIANTS=$(VARIANTS) $(CARGO) test --locked $(CONTROLLER) --test quick -- content

##@ Measure

# Measures the guest, the host, and the unit in a boot from each bus, and prints the results in one table.
bench: setup guest ## one table: the guest, the host, a boot from each bus
	GLOWPLUG='$(abspath $(GUEST))' $(CARGO) bench --locked --quiet --profile guest --bench guest
	$(CARGO) bench --locked --quiet --bench host
	$(CARGO) test --locked --quiet --all-features --test slow -- --test-threads=1 boot::the_drive_is_

# Measures the controller, with a real API server on the same machine.
bench-controller: ## the controller's rates, times and memory
	assets=$$(controller/tests/kube-apiserver) && \
	    KUBEBUILDER_ASSETS="$$assets" $(CARGO) bench --locked --quiet $(CONTROLLER) --bench load

# Measures the controller with many machines in 200 pools: make bench-scale MACHINES=50000. CONTROLLER=PROGRAM measures
# another build.
MACHINES := 10000
bench-scale: ## the controller with many machines: MACHINES=10000
	assets=$$(controller/tests/kube-apiserver) && KUBEBUILDER_ASSETS="$$assets" SCALE=$(MACHINES) \
	    $(CARGO) bench --locked --quiet $(CONTROLLER) --bench load

# Measures the cost of one more machine and of a start at several numbers of machines, and draws docs/growth.svg: make
# bench-growth SIZES='1000 5000'
SIZES := 1000 5000 20000 50000
bench-growth: ## the cost of one more machine at each of SIZES, and docs/growth.svg
	assets=$$(controller/tests/kube-apiserver) && KUBEBUILDER_ASSETS="$$assets" SIZES='$(SIZES)' PICTURE='$(abspath docs/growth.svg)' \
	    $(CARGO) bench --locked --quiet $(CONTROLLER) --bench load

# Measures the memory of the controller while machines and claims come and go without a fault. The memory must not grow:
# make soak MINUTES=60
soak: ## the controller's memory while machines and claims come and go: MINUTES=60
	assets=$$(controller/tests/kube-apiserver) && KUBEBUILDER_ASSETS="$$assets" SOAK=$(MINUTES) \
	    $(CARGO) bench --locked --quiet $(CONTROLLER) --bench load

# Draws docs/dashboard.svg: the panels of the dashboard for a healthy cluster of ten pools, on the API server of the
# tests.
DASHBOARD_SECONDS := 300
dashboard: ## draw docs/dashboard.svg in five minutes
	$(CARGO) test --locked --quiet $(CONTROLLER) --test dashboard -- '$(abspath docs/dashboard.svg)' $(DASHBOARD_SECONDS)

##@ Install and release

# dracut and systemd search below /usr. Each file systemd/NAME.conf is installed as a drop-in of the unit NAME, which
# belongs to another package.
DRACUT_MODULE := $(PREFIX)/lib/dracut/modules.d/50glowplug
UNITS := $(PREFIX)/lib/systemd/system

SHARE := $(PREFIX)/share

install: install-guest install-ctl ## install both programs below DESTDIR

install-guest: guest ## install the guest, its dracut module and its units
	install -D -m 0755 $(GUEST) '$(DESTDIR)$(PREFIX)/bin/glowplug'
	install -D -m 0644 -t '$(DESTDIR)$(SHARE)/man/man8' man/*.8
	install -D -m 0644 completions/glowplug.bash '$(DESTDIR)$(SHARE)/bash-completion/completions/glowplug'
	install -D -m 0644 -t '$(DESTDIR)$(SHARE)/zsh/site-functions' completions/_glowplug
	install -D -m 0644 -t '$(DESTDIR)$(SHARE)/fish/vendor_completions.d' completions/glowplug.fish
	install -D -m 0755 -t '$(DESTDIR)$(DRACUT_MODULE)' dracut/50glowplug/module-setup.sh
	install -D -m 0644 -t '$(DESTDIR)$(DRACUT_MODULE)' dracut/50glowplug/*.service dracut/50glowplug/*.conf
	install -D -m 0644 -t '$(DESTDIR)$(UNITS)' systemd/*.service
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/lib/systemd/system-preset' systemd/90-glowplug.preset
	for drop_in in systemd/*.conf; do name=$${drop_in##*/}; \
	    install -D -m 0644 "$$drop_in" '$(DESTDIR)$(UNITS)'/"$${name%.conf}.service.d/50-glowplug.conf" || exit 1; done

install-ctl: ctl ## install glowplugctl
	install -D -m 0755 -t '$(DESTDIR)$(PREFIX)/bin' $(CTL)
	install -D -m 0644 -t '$(DESTDIR)$(SHARE)/man/man1' man/*.1
	install -d '$(DESTDIR)$(SHARE)/bash-completion/completions' '$(DESTDIR)$(SHARE)/zsh/site-functions' \
	    '$(DESTDIR)$(SHARE)/fish/vendor_completions.d'
	$(CTL) completions bash >'$(DESTDIR)$(SHARE)/bash-completion/completions/glowplugctl'
	$(CTL) completions zsh >'$(DESTDIR)$(SHARE)/zsh/site-functions/_glowplugctl'
	$(CTL) completions fish >'$(DESTDIR)$(SHARE)/fish/vendor_completions.d/glowplugctl.fish'

# Makes the tarballs from which packages are built: the sources and the vendored crates. The same commit gives the same
# bytes.
DIST := $(TARGET_DIR)/dist
REF := HEAD
dist: ## the sources and the vendored crates
	rm -rf $(DIST) && mkdir -p $(DIST)/.cargo
	git -c core.abbrev=12 archive --prefix=glowplug-$(RELEASE)/ --output=$(DIST)/glowplug-$(RELEASE).tar.gz $(REF)
	$(CARGO) vendor --quiet --locked --versioned-dirs $(DIST)/vendor
	cp packaging/vendored.toml $(DIST)/.cargo/config.toml
	tar --sort=name --mtime=@$$(git log -1 --format=%ct $(REF)) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
	    -C $(DIST) -c .cargo vendor | gzip -n >$(DIST)/glowplug-$(RELEASE)-vendor.tar.gz
	rm -r $(DIST)/.cargo $(DIST)/vendor

# `make rpm` and `make deb` build packages from the tarballs, offline.
RPMBUILD := rpmbuild
rpm: dist ## build the RPM packages
	$(RPMBUILD) -ba --define '_topdir $(abspath $(DIST))/rpm' --define '_sourcedir $(abspath $(DIST))' packaging/glowplug.spec

DPKG_BUILDPACKAGE := dpkg-buildpackage
deb: dist ## build the Debian packages
	mkdir -p $(DIST)/deb
	for tarball in $(DIST)/*.tar.gz; do tar -xzf $$tarball -C $(DIST)/deb || exit 1; done
	cd $(DIST)/deb && mv .cargo vendor glowplug-$(RELEASE) && cd glowplug-$(RELEASE) && cp -r packaging/debian debian && \
	    $(DPKG_BUILDPACKAGE) --build=binary --no-sign

# Builds the programs of the package in controller/ as static programs.
IMAGES := $(TARGET_DIR)/image
PATHS := --remap-path-prefix=$(CURDIR)=/src --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
static-controller: export RUSTFLAGS := $(PATHS)
static-controller: target
	CC_$(subst -,_,$(TARGET))=$(CONTROLLER_CC) CARGO_PROFILE_RELEASE_STRIP=true \
	    $(CARGO) build --locked --release $(CONTROLLER) --target $(TARGET) --target-dir $(IMAGES)

# Builds the image of the controller, as an OCI archive for podman and skopeo. Its files have the time of the commit.
# The archive has one image for each of amd64 and arm64 for which the toolchain has the target and a C compiler is
# installed.
IMAGE := $(IMAGES)/glowplug-controller-v$(RELEASE).tar
image: ## build the image of the controller
	packaging/release image $(IMAGES) $(IMAGE) $(RELEASE)
	@sha256sum $(IMAGE)

# Lists the crates of each program in the format of CycloneDX, in one file for each program.
SBOM := $(TARGET_DIR)/sbom
CDX = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(CYCLONEDX)/bin/cargo-cyclonedx cyclonedx -qq --format json \
    --spec-version 1.5 --describe binaries --target $(TARGET)
sbom: $(CYCLONEDX)/bin/cargo-cyclonedx ## list the crates of each program
	rm -rf $(SBOM) && mkdir -p $(SBOM)
	$(CDX) --no-default-features --features guest && mv glowplug_bin.cdx.json $(SBOM)/glowplug.cdx.json
	$(CDX) --no-default-features --features ctl && mv glowplugctl_bin.cdx.json $(SBOM)/glowplugctl.cdx.json
	$(CDX) --manifest-path controller/Cargo.toml && \
	    mv controller/glowplug-controller_bin.cdx.json $(SBOM)/glowplug-controller.cdx.json && \
	    mv controller/kubectl-glowplug_bin.cdx.json $(SBOM)/kubectl-glowplug.cdx.json
	rm -f glowplug_bin.cdx.json glowplugctl_bin.cdx.json
	sed -i 's#file://$(CURDIR)#file:///src#g' $(SBOM)/*

# Makes everything that a release publishes, in one folder. REGISTRY is the registry and folder of the image:
# $(REGISTRY)/glowplug-controller.
RELEASED := $(TARGET_DIR)/glowplug-$(RELEASE)
REGISTRY := registry.example.org/glowplug
release: export RUSTFLAGS := $(PATHS)
release: dist image sbom ## everything that a release publishes: REGISTRY=name
	rm -rf $(RELEASED) && mkdir -p $(RELEASED)
	cp $(DIST)/*.tar.gz $(IMAGE) $(SBOM)/* controller/config/clusterctl/metadata.yaml $(RELEASED)
	git ls-files -z controller/config | tar --null -T - --mtime=@$$(git log -1 --format=%ct) --owner=0 --group=0 --numeric-owner \
	    --mode=u=rwX,go=rX -c | gzip -n >$(RELEASED)/glowplug-controller-$(RELEASE)-manifests.tar.gz
	packaging/release programs $(TARGET_DIR) $(RELEASED) $(RELEASE)
	packaging/release manifests $(RELEASED) $(RELEASE) $(REGISTRY)
	cd $(RELEASED) && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

# Copies the image of `make release` to REGISTRY. SKOPEO_OPTIONS are further options of `skopeo copy`.
SKOPEO_OPTIONS :=
publish: ## copy the image of a release to REGISTRY=name and print its digest
	@packaging/release publish $(RELEASED) $(RELEASE) $(REGISTRY) $(SKOPEO_OPTIONS)

# Builds a release twice, each time in a new clone in the same folder: the compiler's names of symbols depend on the
# folder. Both builds must have the same bytes.
TWICE := $(abspath $(TARGET_DIR))/reproducible
reproducible: ## build a release twice and compare the bytes
	rm -rf $(TWICE)
	for build in one other; do rm -rf $(TWICE)/clone && git clone --quiet . $(TWICE)/clone && \
	    env -u CARGO_TARGET_DIR $(MAKE) -C $(TWICE)/clone TARGET_DIR=target REGISTRY=$(REGISTRY) release && \
	    mv $(TWICE)/clone/target/glowplug-$(RELEASE) $(TWICE)/$$build || exit 1; done
	diff -r $(TWICE)/one $(TWICE)/other

setup: target ## install the Debian packages that the tests need
	tests/setup

target:
	@if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx '$(TARGET)'; then \
	    rustup target add '$(TARGET)'; fi

clean: ## remove what the build wrote
	$(CARGO) clean
