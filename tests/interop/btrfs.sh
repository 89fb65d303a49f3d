#!/bin/bash
# btrfs.sh - the kernel's btrfs and ashlar agree about file systems: what is in them, what is bad, how it is repaired.
#
# Each case is made by mkfs.btrfs, filled through this machine's kernel, and unmounted. Then
#
#   sound      the kernel's scrub and ashlar's count the same on each device; ashlar writes nothing
#   damaged    sectors of some copies of data, of each tree, of superblocks and parities are spoilt: ashlar finds what the
#              kernel finds, and just what was spoilt; `-r` writes nothing; without it every byte is as before the damage;
#              the kernel mounts it, every file is right, its scrub finds nothing, `btrfs check --check-data-csum` neither
#   lost       all copies of some data are spoilt: ashlar finds them, ends with 3, names just the files that the kernel
#              cannot read, and writes nothing
#
# usage: btrfs.sh [--kernel-only]
#   --kernel-only   the kernel repairs instead of ashlar: shows that the suite itself is right
# environment
#   ALL=1           every profile with every checksum, and all that can be done to a file system, instead of a selection
#   ONLY=REGEX      only the cases whose name matches (of all)
#   ASHLAR=FILE     the program to test, default target/debug/ashlar
#   FILES=N MIB=N   so many files by each of fio's four jobs (16384 is the job of old), on devices of so many MiB: for one
#                   case with room for five copies of it
#   JOBS=N          cases at a time, default: one per processor
#   KEEP=1          keep the images
#   TIMES=1         say how long each step takes
#
# Needs root, a kernel with btrfs, loop devices. Debian packages: scripts/setup test.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

# ------------------------------------------------------------------ one case --
# This runs as `btrfs.sh --case NAME` with SUITE set, so that xargs can run several.

cleanup() {
	local mount loop file
	for mount in "$WORK/mount" "$WORK/outer"; do
		! mountpoint -q "$mount" || umount "$mount"
		losetup --noheadings --output NAME,BACK-FILE | while read -r loop file; do
			case $mount:$file in
			"$WORK/mount:$WORK/outer.img") ;; # what is on it comes first
			*:"$WORK"/*) losetup --detach "$loop" ;;
			esac
		done
	done
	[ "${KEEP:-}" ] || rm -r --one-file-system "$WORK"
}

if [ "${1:-}" = --case ]; then
	export WORK=$SUITE/$2
	mkdir "$WORK" || exit 1
	trap cleanup EXIT
	trap 'exit 130' INT TERM HUP
	started=$SECONDS
	if "$here/btrfs_judge.py" "$2" >"$WORK/output" 2>&1; then
		verdict=pass
	else
		verdict=FAIL
	fi
	{
		printf '%s %-20s %d s\n' $verdict "$2" $((SECONDS - started))
		sed 's/^/     /' "$WORK/output"
	} | tee -a "$SUITE/verdicts"
	exit 0
fi

# --------------------------------------------------------------------- suite --
case ${1:-} in
--kernel-only) ASHLAR= ;;
'')
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	needs "$ashlar"
	ASHLAR=$(realpath "$ashlar")
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
export ASHLAR
[ "$(id -u)" = 0 ] || { echo "btrfs.sh: needs root, to mount" >&2; exit 1; }
# In a mount namespace of its own: others that are made meanwhile would keep a copy of each mount, so that umount
# does not end it, and the kernel would still have the images when ashlar gets them.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "$@"
modprobe -q btrfs
grep -qw btrfs /proc/filesystems || { echo "btrfs.sh: this kernel has no btrfs" >&2; exit 1; }

SUITE=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-btrfs.XXXXXX") || exit 1
export SUITE
trap '[ "${KEEP:-}" ] && echo "kept: $SUITE" || rm -rf --one-file-system "$SUITE"' EXIT
trap 'exit 130' INT TERM HUP
mapfile -t names < <("$here/btrfs_cases.py" ${ALL:+--all} ${ONLY:+--all} | cut -f1 | grep -E "${ONLY:-}")
[ ${#names[@]} != 0 ] || { echo "btrfs.sh: no case matches" >&2; exit 1; }

for part in pack files tree damage; do
	"$here/btrfs_$part.py" selftest >"$SUITE/selftest" 2>&1 || { cat "$SUITE/selftest"; exit 1; }
done
echo "the suite's own tools: pass, $SECONDS s"
: >"$SUITE/verdicts"
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-$(nproc)}" -I NAME "$0" --case NAME
passed=$(grep -c '^pass ' "$SUITE/verdicts")
echo "$passed of ${#names[@]} cases, $SECONDS s"
[ -e /sys/fs/btrfs/features/raid_stripe_tree ] || echo "not tried: the RAID stripe tree, which this kernel does not know"
[ "$passed" = ${#names[@]} ]
