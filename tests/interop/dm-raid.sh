#!/bin/bash
# dm-raid.sh - RAID volumes that LVM and the kernel (UML) made are read by ashlar bit for bit.
#
# raid1, raid10, raid0, and raid4, 5 and 6 in each order of parity; in sync, being made equal, with a leg that failed or is not rebuilt; and each
# of them once more without each leg that may be missing. What the kernel read of each volume is
# compared with what ashlar reads of the hidden devices.
#
# Debian packages: scripts/setup test. Works as an ordinary user. Environment: KEEP=1 keeps the images; EXAMPLES=DIR has the example dm_raid_read, default target/debug/examples.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
cd "$root" || exit 1
work=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -r "$work"' EXIT
mkdir "$work/out"
disks=()
for i in 0 1 2 3 4; do
	# Without their first blocks: one in 256 random sectors is a partition table of the Acorn (CUMANA) to the guest's kernel,
	# and LVM then finds each volume on the disk and on its partition.
	{ head -c 1M /dev/zero && head -c 63M /dev/urandom; } >"$work/disk$i"
	disks+=(--disk "$work/disk$i")
done

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
reader=$examples/dm_raid_read
needs "$reader"
tests/oracle/uml-run --timeout 240 --log "$work/klog" --rw "$work/out" "${disks[@]}" \
	"$here/dm-raid-guest.sh" "$work/out" || { echo "FAIL the guest"; tail -n 20 "$work/klog"; exit 1; }

failed=0 count=0
fail() {
	echo "FAIL $*"
	failed=1
}
# compare NAME MISSING - the volume, without the leg MISSING unless that is "none"
compare() {
	local v=$1 missing=$2 leg pairs=() volume=$work/out/$1.volume meta
	for ((leg = 0; leg < legs; leg++)); do
		meta=$work/out/$v.$leg.meta
		[ -e "$meta" ] || meta=
		if [ "$leg" = "$missing" ]; then pairs+=(","); else pairs+=("$meta,$work/out/$v.$leg.data"); fi
	done
	"$reader" "$level" "$copies" "$chunk" $(($(stat -c %s "$volume") / 512)) "${pairs[@]}" 2>"$work/notes" |
		cmp - "$volume" || { fail "$v without $missing"; cat "$work/notes"; return; }
	echo "pass $v without $missing"
	count=$((count + 1))
}

for shape in "$work/out"/*.shape; do
	v=${shape##*/}
	v=${v%.shape}
	read -r level copies chunk legs out <"$shape"
	compare "$v" none
	# The leg that failed or is not rebuilt is left out, and said to be.
	[ -z "$out" ] || grep -q "$v.$out.data left out" "$work/notes" || { fail "$v: leg $out was taken"; cat "$work/notes"; }
	[ "$level" != 0 ] || continue
	for ((without = 0; without < legs; without++)); do
		# Without the leg that is read until copies are equal, or both legs of a pair, data is lost.
		[ "$v" != partly ] || continue
		[ "$v-$without" != tenless-3 ] || continue
		[ "$v" != fiveless ] || [ "$without" = 1 ] || continue
		compare "$v" "$without"
	done
done
[ $count -ge 75 ] || fail "only $count comparisons were made"
exit $failed
