#!/bin/bash
# dm-thin.sh - thin pools that LVM and the kernel (UML) made are read by ashlar bit for bit.
#
# Volumes, snapshots of them, discards, an external origin, data blocks of 64 and 192 KiB; what the
# kernel read of each volume is compared with what ashlar reads of the pool's devices.
#
# Debian packages: scripts/setup test. Works as an ordinary user. Environment: KEEP=1 keeps the images; EXAMPLES=DIR has the example thin_read, default target/debug/examples.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
cd "$root" || exit 1
work=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -r "$work"' EXIT
mkdir "$work/out"
truncate -s 96M "$work/disk0" "$work/disk1"

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
reader=$examples/thin_read
needs "$reader"
tests/oracle/uml-run --timeout 120 --log "$work/klog" --rw "$work/out" --disk "$work/disk0" \
	--disk "$work/disk1" "$here/dm-thin-guest.sh" "$work/out" || { echo "FAIL the guest"; tail -n 20 "$work/klog"; exit 1; }

failed=0 count=0
for pool in small odd; do
	for volume in "$work/out/$pool".*.volume; do
		id=${volume%.volume} origin=()
		id=${id##*.}
		[ "$id" != "$(cat "$work/out/$pool.origin-of")" ] || origin=("$work/out/$pool.origin")
		if "$reader" "$work/out/$pool.metadata" "$work/out/$pool.data" "$(cat "$work/out/$pool.chunk")" "$id" \
			$(($(stat -c %s "$volume") / 512)) "${origin[@]}" | cmp - "$volume"; then
			echo "pass $pool $id"
			count=$((count + 1))
		else
			echo "FAIL $pool $id"
			failed=1
		fi
	done
done
[ $count -ge 12 ] || { echo "FAIL only $count volumes were compared"; failed=1; }
exit $failed
