#!/bin/bash
# dm.sh - the kernel's device mapper and ashlar's agree about tables, both ways.
#
#   kernel -> ashlar   the kernel (UML) writes random data through dmsetup's devices onto images;
#                      ashlar maps the same tables over the images and reads them bit for bit
#   ashlar -> kernel   the other way round, other data
#   log-writes         the log that the kernel's target wrote is read by ashlar, and ashlar's log has the
#                      same entries; where the kernel has no such target, that is said
#
# usage: dm.sh
# environment
#   EXAMPLES=DIR        where the example mapped_image is, default target/debug/examples
#   KEEP=1              keep the images and logs
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

# ------------------------------------------------------------- in the guest --
# `dm.sh --guest write|compare DIR`: for each DIR/NAME.table, NAME.data is written to the device, or
# compared with it. The tables call the images by their paths; loop devices stand in for these.
guest() {
	local mode=$1 dir=$2 table name image device log script=
	modprobe -a dm-mod dm-mirror loop
	export DM_DISABLE_UDEV=1
	for image in "$dir"/*.img; do
		device=$(losetup --find --show "$image") || return 1
		script+="s:$image:$device:;"
	done
	for table in "$dir"/*.table; do
		name=$(basename "$table" .table)
		sed "$script" "$table" | dmsetup create "$name" || return 1
		if [ "$mode" = write ]; then
			dd if="$dir/$name.data" of="/dev/mapper/$name" bs=300K conv=fsync status=none || return 1
		else
			cmp "$dir/$name.data" "/dev/mapper/$name" || return 1
		fi
		dmsetup status "$name" | sed 's/[0-9]*:[0-9]*/DEVICE/g' >"$dir/$name.status.kernel"
		dmsetup remove "$name" || return 1
	done
	[ "$mode" = compare ] || return 0
	if ! modprobe dm-log-writes 2>/dev/null || ! dmsetup targets | grep -q '^log-writes'; then
		echo "no log-writes" >"$dir/log"
		return 0
	fi
	device=$(losetup --noheadings --output NAME --associated "$dir/d0.img")
	log=$(losetup --noheadings --output NAME --associated "$dir/d1.img")
	echo "0 2048 log-writes $device $log" | dmsetup create log || return 1
	dd if="$dir/log.data" of=/dev/mapper/log bs=64K count=4 oflag=direct conv=fsync status=none || return 1
	dmsetup message log 0 mark half || return 1
	dd if="$dir/log.data" of=/dev/mapper/log bs=4K count=2 seek=50 oflag=direct conv=fsync status=none || return 1
	dmsetup remove log || return 1
	echo "log-writes" >"$dir/log"
}
if [ "${1:-}" = --guest ]; then
	guest "$2" "$3"
	exit
fi

# -------------------------------------------------------------- on the host --
fail() {
	echo "FAIL $*"
	exit 1
}

work=$(mktemp -d) || exit 1
trap '[ -n "${KEEP:-}" ] && echo "kept: $work" || rm -rf "$work"' EXIT
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
example=$examples/mapped_image
needs "$example"

images=()
for i in 0 1 2; do
	truncate -s 4M "$work/d$i.img"
	images+=("$work/d$i.img")
done
# Areas of the images do not overlap, so that all tables can be written before any is read.
d() { echo "$work/d$1.img $2"; }
echo "0 1001 linear $(d 0 1)" >"$work/linear.table"
printf '%s\n' "0 512 linear $(d 1 8)" "512 99 linear $(d 0 1100)" "611 5 linear $(d 2 0)" >"$work/pieces.table"
echo "0 1024 striped 2 8 $(d 0 1500) $(d 1 600)" >"$work/two.table"
echo "0 1152 striped 3 128 $(d 0 2048) $(d 1 1200) $(d 2 64)" >"$work/three.table"
# Chunks of the kernel are no less than a page unless it says so; these are no powers of two.
echo "0 720 striped 3 24 $(d 0 2500) $(d 1 1700) $(d 2 500)" >"$work/odd.table"
printf '%s\n' "0 100 linear $(d 1 2100)" "100 512 striped 2 64 $(d 0 2800) $(d 2 900)" "612 64 linear $(d 2 1300)" >"$work/mixed.table"
echo "0 768 mirror core 2 64 nosync 2 $(d 0 3500) $(d 2 1500)" >"$work/mirror.table"
names=(linear pieces two three odd mixed mirror)

# same_legs - both legs of the mirror have what was written to it
same_legs() {
	local leg
	for leg in "$work/d0.img $((3500 * 512))" "$work/d2.img $((1500 * 512))"; do
		# shellcheck disable=SC2086 # file and offset
		cmp -n $((768 * 512)) "$work/mirror.data" ${leg% *} 0 "${leg#* }" || fail "a leg of the mirror differs: $1"
	done
}

# new_data - random data for each table
new_data() {
	local name sectors
	for name in "${names[@]}"; do
		sectors=$(awk '{ sum += $2 } END { print sum }' "$work/$name.table")
		head -c $((sectors * 512)) /dev/urandom >"$work/$name.data"
	done
}

in_guest() {
	"$root/tests/oracle/uml-run" --timeout 100 --rw "$work" --log "$work/klog" "$here/dm.sh" --guest "$1" "$work" ||
		fail "the kernel: $1"
}

new_data
head -c 256K /dev/urandom >"$work/log.data"
in_guest write
same_legs "the kernel wrote"
for name in "${names[@]}"; do
	"$example" read "$work/$name.table" "$work/$name.read" "${images[@]}" >"$work/$name.out" || fail "ashlar reads $name"
	cmp "$work/$name.data" "$work/$name.read" || fail "ashlar reads something else: $name"
	cmp "$work/$name.table" <(head -n "$(wc -l <"$work/$name.table")" "$work/$name.out") || fail "another table: $name"
	echo "pass kernel -> ashlar $name"
done

new_data
for name in "${names[@]}"; do
	"$example" write "$work/$name.table" "$work/$name.data" "${images[@]}" >"$work/$name.out" || fail "ashlar writes $name"
done
same_legs "ashlar wrote"
in_guest compare
for name in "${names[@]}"; do
	tail -n "$(wc -l <"$work/$name.table")" "$work/$name.out" | sed "s:$work/d[0-9]\.img:DEVICE:g" |
		cmp - "$work/$name.status.kernel" || fail "another status: $name"
	echo "pass ashlar -> kernel $name"
done

if [ "$(cat "$work/log")" != log-writes ]; then
	echo "SKIPPED log-writes: this kernel has no such target"
	exit 0
fi
"$example" log "$work/d1.img" >"$work/log.out" || fail "ashlar cannot read the kernel's log"
# 256 KiB and a flush, the mark, 8 KiB and a flush, and the mark of the end.
awk '
	$4 != "" { marks = marks $4 "@" sectors " " }
	{ sectors += $2 }
	END { print marks sectors; exit marks sectors != "half@512 dm-log-writes-end@528 528" }
' "$work/log.out" || fail "the kernel's log says something else: $(cat "$work/log.out")"
echo "pass log-writes"
