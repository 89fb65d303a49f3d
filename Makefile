# The verbs of this project. Each installs what it needs first (scripts/setup).
# Cargo keeps its own books about what is up to date, so nothing here is a file.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help check test test-busy interop soak demo demo-lvm demo-btrfs demo-zvol deb image bench figures fmt clean
MAKEFLAGS += --no-print-directory

# "NAME @SECONDS": a step's budget of processor seconds (scripts/steps).
STATIC_CHECKS := \
	"formatting" "cargo fmt --all --check" \
	"house rules" "cargo xtask tidy" \
	"shell scripts" "scripts/lint-shell" \
	"figures" "scripts/figures --check"

# Every step below runs what this one has built: cargo resolves features once, and each crate is read once, for lints and for code.
BUILD := "lints, and build of tests and programs @950" "scripts/test-programs build"

# What serves and does I/O without io_uring, in make interop; its container runs nearly all other tests of the program so, too.
# Of the program make test has one such test, beside all of the crates that do the I/O.
WITHOUT_IO_URING := serving:: ending:: nbd_disks:: rbd_disks:: btrfs_scrub
ONE_WITHOUT_IO_URING := serving::nbd_clients_see_the_volume

# Further measurements of zvols, with real clients and as text: make interop has them.
ZVOL_BENCHES := zvol::clients_of_nbd zvol::dd_on_a_loop_device zvol::the_tables

# What a container of Docker has not: loop devices, mounts, FUSE and the rights of CAP_SYS_ADMIN and CAP_SYS_PTRACE.
OUTSIDE := fuse_mount at_once::a_member_that_was_removed_is_closed background::a_pool_is_served_in_the_background_too \
	background::it_returns_once_everything_is_served btrfs_get::attributes_that_give_rights btrfs_lists::a_file_system_is_shown \
	btrfs_lists::errors_that_the_kernel_counted btrfs_lists::subvolumes_are_listed btrfs_verbs::a_file_system_that_was_just_filled btrfs_verbs::damaged_structures_are_found \
	btrfs_verbs::numbers_and_paths_are_resolved btrfs_verbs::subvolumes_are_shown btrfs_verbs::usage_is_that in_use::a_living_holder \
	in_use::a_reader_without_rights mdadm::devices_without_array nbd_disks::a_pool_lies_on_the_file

# Longest first, so that the last to run are short. The budgets are what a whole run of make test took, and half of it, because the same
# work takes a third more beside a busy thread of the same core. Steps without one have much of their work done where the shell does not
# count it: by daemons that go on without their parent, by guests that are killed, or by the kernel's own threads for loop devices and
# file systems.
CARGO_TESTS := \
	"tests of the program @280" "timeout 900 scripts/test-programs run cli -- --test-threads=3" \
	"tests of md @190" "timeout 900 scripts/test-programs run md" \
	"tests of ZFS @115" "timeout 900 scripts/test-programs run zfs -- --test-threads=3" \
	"tests of LVM, the device mapper, btrfs @50" "timeout 900 scripts/test-programs run lvm dm btrfs" \
	"I/O without io_uring @25" "export ASHLAR_IO=threads; timeout 600 scripts/test-programs again engine nbd export; timeout 60 scripts/test-programs again cli -- $(ONE_WITHOUT_IO_URING)" \
	"fuzz targets, a bounded share @25" "timeout 600 scripts/test-programs run fuzz" \
	"all other cargo tests @180" "timeout 900 scripts/test-programs run others -- $(ZVOL_BENCHES:%=--skip %)"

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

check: ## formatting, house rules, lints, unit tests (under two minutes when warm)
	@scripts/setup check
	@scripts/steps "make check" \
		$(STATIC_CHECKS) \
		"lints" "cargo clippy --quiet --locked --workspace --all-targets -- -D warnings" \
		"unit tests" "cargo test --quiet --locked --workspace --lib --bins"

test: ## what CI runs: check, all tests, one case of each kind with a real kernel (20 minutes when cold)
	@scripts/setup test
	@scripts/steps "make test" \
		$(STATIC_CHECKS) \
		$(BUILD) \
		-- \
		$(CARGO_TESTS) \
		"md against the kernel @125" "ONLY='$(MD_CASES)' timeout 600 tests/interop/md.sh" \
		"members between ashlar and the kernel @80" "ONLY='^(readd|recover)-' timeout 600 tests/interop/md-members.sh" \
		"arrays that crash" "ROUNDS=1 ONLY='^raid10-f2|^raid5-(ls|ppl-x4)' timeout 600 tests/interop/md-crash.sh" \
		"mdadm's own scenarios for parity @35" "ONLY='^(raid6-one|repair-raid6-left)' timeout 600 tests/interop/md-scenarios.sh" \
		"an array whose reshape was interrupted" "ONLY='^raid5-grow-crash$$' timeout 300 tests/interop/md-reshape.sh" \
		"the disks of a NAS with unequal disks @20" "ONLY=raid5-ext4 timeout 300 tests/interop/shr.sh" \
		"volume groups between ashlar and the kernel @116" "timeout 600 tests/interop/lvm.sh" \
		"ashlar lvm against LVM @88" "timeout 600 tests/interop/lvm-commands.sh" \
		"what users of LVM type @75" "timeout 300 tests/interop/lvm-verbs.sh" \
		"groups that change while they serve @30" "CHANGES=80 EVERY=20 timeout 600 tests/interop/lvm-live.sh" \
		"snapshots between ashlar and the kernel @38" "ONLY=8-cut timeout 600 tests/interop/dm-snapshot.sh" \
		"the device mapper against the kernel @18" "timeout 600 tests/interop/dm.sh" \
		"volumes as disks of virtual machines" "timeout 200 tests/interop/vhost-user.sh uml" \
		"btrfs against the kernel @20" "ONLY='^(raid1-sha256|raid6-sha256)$$' timeout 600 tests/interop/btrfs.sh" \
		"alert rules under promtool" "timeout 60 tests/e2e/alerts.sh" \
		"the README and the tour" "timeout 300 tests/e2e/tour" \
		"the disks of a dead NAS" "timeout 400 tests/e2e/nas.sh" \
		"ashlar top in a terminal" "timeout 120 tests/e2e/top.sh" \
		"file systems on arrays" "timeout 600 tests/e2e/filesystems.sh -r 1 n2" \
		"snapshots of file systems in use" "timeout 300 tests/e2e/snapshots.sh -r 3" \
		"arrays on NBD servers" "timeout 300 tests/e2e/nbd-members.sh" \
		"NBD with TLS @10" "timeout 300 tests/interop/nbd-tls.sh" \
		"QEMU's scenarios @20" "timeout 300 tests/interop/qemu.sh" \
		"discards of a loop device" "timeout 300 tests/e2e/discards.sh" \
		"file systems whose daemon is killed" "timeout 600 tests/e2e/kill.sh -r 1 raid1 far-ll six five-ppl"

# A case of each kind of geometry and of metadata.
MD_CASES := ^(raid10-f2-x4|raid10-n2-x4|raid10-o2-x3|raid1-x2|raid0-x3|linear-x3-0k|raid5-left-symmetric-x4|raid6-left-symmetric-x4)

# What serves: the program's tests and the suites with file systems. Each waits for progress, and for no time.
test-busy: ## the suites of the program and of file systems beside a builder that keeps all processors full
	@scripts/setup test
	@scripts/steps "make test-busy, the build" $(BUILD)
	@STEPS_BUDGET=off scripts/busy scripts/steps "make test-busy" -- \
		"tests of the program" "timeout 2700 scripts/test-programs run cli -- --test-threads=3" \
		"the README and the tour" "timeout 900 tests/e2e/tour" \
		"the disks of a dead NAS" "timeout 1200 tests/e2e/nas.sh" \
		"ashlar top in a terminal" "timeout 400 tests/e2e/top.sh" \
		"file systems on arrays" "timeout 1200 tests/e2e/filesystems.sh -r 1 n2" \
		"snapshots of file systems in use" "timeout 900 tests/e2e/snapshots.sh -r 3" \
		"arrays on NBD servers" "timeout 900 tests/e2e/nbd-members.sh" \
		"discards of a loop device" "timeout 900 tests/e2e/discards.sh" \
		"file systems whose daemon is killed" "timeout 1800 tests/e2e/kill.sh -r 1" \
		"images of a Ceph cluster with faults" "timeout 900 tests/e2e/rbd.sh"

interop: ## every suite with a real kernel, built ZFS modules included: before an issue is resolved, and every night
	@scripts/setup test
	@scripts/steps "make interop" \
		$(BUILD) \
		"ZFS for the guest's kernel" "tests/oracle/build-zfs" \
		-- \
		"zvols between ashlar and the kernel" "timeout 3600 tests/interop/zvol.sh" \
		"the program in a container of Docker" "timeout 1800 tests/e2e/container scripts/test-programs again cli nbd export -- --test-threads=3 $(OUTSIDE:%=--skip %)" \
		"the program without io_uring" "ASHLAR_IO=threads timeout 600 scripts/test-programs again cli -- --test-threads=3 $(WITHOUT_IO_URING)" \
		"zvols measured" "timeout 600 scripts/test-programs again benches/suite -- zvol::" \
		"btrfs file systems against the kernel" "timeout 1800 tests/interop/btrfs.sh" \
		"file systems on arrays" "timeout 1800 tests/e2e/filesystems.sh -r 4" \
		"volumes as disks of virtual machines" "timeout 1800 tests/interop/vhost-user.sh" \
		"volumes as block devices, by ublk" "timeout 1200 tests/interop/ublk.sh" \
		"the unit with block devices" "timeout 900 tests/interop/ublk-unit.sh" \
		"md against the kernel" "timeout 1800 tests/interop/md.sh" \
		"members between ashlar and the kernel" "timeout 1200 tests/interop/md-members.sh" \
		"arrays that crash" "ROUNDS=1 timeout 1200 tests/interop/md-crash.sh" \
		"mdadm's own scenarios for parity" "timeout 1500 tests/interop/md-scenarios.sh" \
		"arrays whose reshape was interrupted" "timeout 600 tests/interop/md-reshape.sh" \
		"the disks of a NAS with unequal disks" "timeout 400 tests/interop/shr.sh" \
		"volume groups between ashlar and the kernel" "timeout 600 tests/interop/lvm.sh" \
		"ashlar lvm against LVM" "timeout 600 tests/interop/lvm-commands.sh" \
		"what users of LVM type" "timeout 300 tests/interop/lvm-verbs.sh" \
		"groups that change while they serve" "timeout 1200 tests/interop/lvm-live.sh" \
		"texts and labels against LVM" "timeout 600 tests/interop/lvm-metadata.sh" \
		"snapshots between ashlar and the kernel" "timeout 1200 tests/interop/dm-snapshot.sh" \
		"the device mapper against the kernel" "timeout 600 tests/interop/dm.sh" \
		"thin volumes of the kernel" "timeout 600 tests/interop/dm-thin.sh" \
		"RAID volumes of LVM" "timeout 600 tests/interop/dm-raid.sh" \
		"a silent file system elsewhere" "timeout 300 tests/interop/silent-mount.sh" \
		"a daemon whose memory is short" "timeout 600 tests/e2e/memory.sh" \
		"snapshots of file systems in use" "timeout 900 tests/e2e/snapshots.sh -r 50" \
		"file systems whose daemon is killed" "timeout 1200 tests/e2e/kill.sh" \
		"arrays on NBD servers" "timeout 900 tests/e2e/nbd-members.sh -r 5" \
		"NBD with TLS" "timeout 600 tests/interop/nbd-tls.sh" \
		"QEMU's scenarios" "timeout 600 tests/interop/qemu.sh" \
		"discards of a loop device" "timeout 300 tests/e2e/discards.sh" \
		"images of a Ceph cluster with faults" "timeout 1200 tests/e2e/rbd.sh -r 3 all" \
		"the disks of a dead NAS" "timeout 400 tests/e2e/nas.sh" \
		"the demo of a btrfs scrub, on less data" "ASHLAR=target/debug/ashlar timeout 300 scripts/demo-btrfs --size 64"

# The suites run the release build here: what users run, and faster where a daemon is killed in the middle.
soak: export ASHLAR ?= $(CURDIR)/target/release/ashlar
soak: export EXAMPLES ?= $(CURDIR)/target/release/examples
soak: ## the same for longer: every case, more rounds, random seeds, Miri, fuzzing where cargo-fuzz is there
	@scripts/setup soak
	@scripts/steps "make soak" \
		"release build" "cargo build --quiet --locked --release --workspace --bins --examples" \
		"the program of the packages" "cargo build --quiet --locked --profile dist --package ashlar" \
		"long simulations" "LOOM_MAX_PREEMPTIONS=9 ASHLAR_SEEDS=$${ASHLAR_SEEDS:-5000} cargo test --quiet --locked --release --workspace" \
		"buffers and the gate under Miri" "timeout 1800 scripts/miri" \
		"every md case against the kernel" "ALL=1 tests/interop/md.sh" \
		"members between ashlar and the kernel" "ALL=1 tests/interop/md-members.sh" \
		"arrays that crash" "ROUNDS=$${ROUNDS:-10} tests/interop/md-crash.sh" \
		"mdadm's own scenarios for parity" "ALL=1 tests/interop/md-scenarios.sh" \
		"these scenarios with a sector spoilt behind their backs" "tests/interop/md-scenarios.sh --tampered" \
		"the device mapper against the kernel" "tests/interop/dm.sh" \
		"snapshots between ashlar and the kernel" "tests/interop/dm-snapshot.sh" \
		"thin volumes of the kernel" "tests/interop/dm-thin.sh" \
		"RAID volumes of LVM" "tests/interop/dm-raid.sh" \
		"texts and labels against LVM" "tests/interop/lvm-metadata.sh" \
		"volume groups between ashlar and the kernel" "ROUNDS=$${ROUNDS:-10} tests/interop/lvm.sh" \
		"ashlar lvm against LVM" "tests/interop/lvm-commands.sh" \
		"what users of LVM type" "tests/interop/lvm-verbs.sh" \
		"groups that change while they serve" "CHANGES=5000 tests/interop/lvm-live.sh" \
		"every btrfs case against the kernel" "ALL=1 tests/interop/btrfs.sh" \
		"every case of zvols between ashlar and the kernel" "ALL=1 tests/interop/zvol.sh" \
		"the disks of a dead NAS" "tests/e2e/nas.sh" \
		"metrics as Prometheus reads them" "timeout 300 tests/e2e/metrics.sh" \
		"the packages in fresh systems and in a container" "ASHLAR=target/dist/ashlar timeout 1800 tests/e2e/packages.sh" \
		"ashlar top in a terminal" "timeout 900 tests/e2e/top.sh -r 50" \
		"file systems on arrays" "tests/e2e/filesystems.sh -r 50" \
		"cases of xfstests on arrays" "tests/e2e/xfstests.sh -s $${XFSTESTS_SECONDS:-60}" \
		"snapshots of file systems in use" "tests/e2e/snapshots.sh -r 500" \
		"file systems whose daemon is killed" "timeout 3000 tests/e2e/kill.sh -r 50" \
		"arrays on NBD servers" "timeout 3600 tests/e2e/nbd-members.sh -r 50" \
		"images of a Ceph cluster with faults" "timeout 7200 tests/e2e/rbd.sh -r 50 all" \
		"fuzz targets, more of the bounded share" "ASHLAR_FUZZ_ROUNDS=$${FUZZ_ROUNDS:-40} timeout 1800 cargo test --quiet --locked --workspace --test bounded" \
		"fuzzing" "scripts/fuzz $${FUZZ_SECONDS:-300}"

BUILD_DEMO := cargo build --locked --profile demo --package ashlar --no-default-features

demo: ## the RAID10 discard table on four sparse 1.9 TB images, with a real mkfs.xfs and fstrim
	@scripts/setup demo
	$(BUILD_DEMO)
	@scripts/demo

demo-lvm: ## the read of an LVM snapshot in the kernel's bug report, on a model of its disk, with nomerges 2, 1 and 0
	@scripts/setup demo
	$(BUILD_DEMO)
	@scripts/demo-lvm

demo-btrfs: ## a scrub of btrfs on a model of the kernel benchmark's hard disk, with each mode of readahead, and one that repairs
	@scripts/setup demo
	$(BUILD_DEMO)
	@scripts/demo-btrfs

demo-zvol: ## parallel dd on a zvol with the request queue on and off, beside the table of OpenZFS's pull request
	@scripts/setup zvol
	$(BUILD_DEMO) --bin ashlar --package ashlar-benches --bin ashlar-bench
	@scripts/demo-zvol

deb: ## the package for Debian 12 and 13, in target/packages
	@scripts/setup packages
	cargo build --locked --profile dist --package ashlar
	@scripts/deb

image: ## the container image, as a tar in target/packages
	@scripts/setup packages
	cargo build --locked --profile dist --package ashlar
	@scripts/image

bench: ## all measurements of docs/figures.md, on a quiet machine; scripts/figures --import takes what it writes
	@scripts/setup test
	cargo build --quiet --locked --profile dist --workspace
	scripts/bench

figures: ## the plots and tables of docs/figures.md, and numbers of README.md, from docs/figures/*.json; says which are older than their code
	scripts/figures

fmt: ## format the Rust sources
	cargo fmt --all

clean: ## remove what was built
	cargo clean
