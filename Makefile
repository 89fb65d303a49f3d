# The verbs of this project. Each installs what it needs first (scripts/setup).
# Cargo keeps its own books about what is up to date, so nothing here is a file.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help check test demo bench soak fmt clean
MAKEFLAGS += --no-print-directory

STATIC_CHECKS := \
	"formatting" "cargo fmt --all --check" \
	"house rules" "cargo xtask tidy" \
	"shell scripts" "scripts/lint-shell" \
	"lock file of the fuzz targets" "cargo metadata --quiet --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null" \
	"lints" "cargo clippy --quiet --locked --workspace --all-targets -- -D warnings"

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

check: ## formatting, house rules, lints, unit tests (under two minutes when warm)
	@scripts/setup check
	@scripts/steps "make check" \
		$(STATIC_CHECKS) \
		"unit tests" "cargo test --quiet --locked --workspace --lib --bins"

test: ## everything: check, all tests, a real kernel and its tools
	@scripts/setup test
	@scripts/steps "make test" \
		$(STATIC_CHECKS) \
		"all cargo tests" "timeout 2400 cargo test --quiet --locked --workspace" \
		"rules of md broken on purpose" "timeout 300 cargo test --quiet --locked -p ashlar-md --features canaries --test canaries" \
		"rules of dm-snapshot broken on purpose" "timeout 300 cargo test --quiet --locked -p ashlar-dm --features canaries --test canaries" \
		"fuzz targets, a bounded share" "timeout 600 cargo test --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir target --no-default-features --test bounded" \
		"release build" "cargo build --quiet --locked --release" \
		-- \
		"zvols between ashlar and the kernel" "ONLY='^(kernel-dies-q0|kernel-made-log|ashlar-made-raidz|ashlar-dies-q1|ashlar-segments-q1|ashlar-lvm-q1)$$' timeout 2400 tests/interop/zvol.sh" \
		"md against the kernel" "timeout 1800 tests/interop/md.sh" \
		"members between ashlar and the kernel" "timeout 1200 tests/interop/md-members.sh" \
		"arrays that crash" "ROUNDS=1 timeout 1200 tests/interop/md-crash.sh" \
		"the device mapper against the kernel" "timeout 600 tests/interop/dm.sh" \
		"snapshots between ashlar and the kernel" "ONLY=8-cut timeout 600 tests/interop/dm-snapshot.sh" \
		"texts and labels against LVM" "timeout 600 tests/interop/lvm-metadata.sh" \
		"volume groups between ashlar and the kernel" "timeout 600 tests/interop/lvm.sh" \
		"ashlar lvm against LVM" "ASHLAR=target/release/ashlar timeout 600 tests/interop/lvm-commands.sh" \
		"btrfs file systems against the kernel" "timeout 900 tests/interop/btrfs.sh" \
		"the disks of a dead NAS" "timeout 400 tests/e2e/nas.sh" \
		"file systems on arrays" "timeout 1800 tests/e2e/filesystems.sh -r 4" \
		"file systems whose daemon is killed" "timeout 600 tests/e2e/kill.sh"

demo: ## the RAID10 discard table on four sparse 1.9 TB images, with a real mkfs.xfs and fstrim
	@scripts/setup demo
	cargo build --quiet --locked --release
	@scripts/demo

bench: ## the demo's table with the full figures of the slow configuration, and the benches
	@scripts/setup test
	cargo build --quiet --locked --release --workspace
	target/release/ashlar-benches
	benches/exports.py
	@scripts/demo --full

soak: ## the same tests for longer: every md geometry, random seeds, fuzzing where nightly is there
	@scripts/setup test
	@scripts/steps "make soak" \
		"release build" "cargo build --quiet --locked --release" \
		"long simulations" "ASHLAR_SEEDS=$${ASHLAR_SEEDS:-5000} cargo test --quiet --locked --release --workspace" \
		"every md case against the kernel" "ALL=1 tests/interop/md.sh" \
		"members between ashlar and the kernel" "ALL=1 tests/interop/md-members.sh" \
		"arrays that crash" "ROUNDS=$${ROUNDS:-10} tests/interop/md-crash.sh" \
		"the device mapper against the kernel" "tests/interop/dm.sh" \
		"snapshots between ashlar and the kernel" "tests/interop/dm-snapshot.sh" \
		"thin volumes of the kernel" "tests/interop/dm-thin.sh" \
		"RAID volumes of LVM" "tests/interop/dm-raid.sh" \
		"texts and labels against LVM" "tests/interop/lvm-metadata.sh" \
		"volume groups between ashlar and the kernel" "ROUNDS=$${ROUNDS:-10} tests/interop/lvm.sh" \
		"ashlar lvm against LVM" "ASHLAR=target/release/ashlar tests/interop/lvm-commands.sh" \
		"every btrfs case against the kernel" "ALL=1 tests/interop/btrfs.sh" \
		"every case of zvols between ashlar and the kernel" "ALL=1 tests/interop/zvol.sh" \
		"the disks of a dead NAS" "tests/e2e/nas.sh" \
		"file systems on arrays" "tests/e2e/filesystems.sh -r 50" \
		"file systems whose daemon is killed" "timeout 3000 tests/e2e/kill.sh -r 50" \
		"fuzz targets, more of the bounded share" "ASHLAR_FUZZ_ROUNDS=$${FUZZ_ROUNDS:-20} timeout 1800 cargo test --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir target --no-default-features --test bounded" \
		"fuzzing" "scripts/fuzz $${FUZZ_SECONDS:-300}"

fmt: ## format the Rust sources
	cargo fmt --all

clean: ## remove what was built
	cargo clean
