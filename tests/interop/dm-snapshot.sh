#!/bin/bash
# dm-snapshot.sh - one side begins a snapshot, the other continues it, and back, to the end of a merge.
#
# The sides are the kernel (UML) and ashlar. Per case, with chunks of 8, 16 and 128 sectors:
#
#   take     the first side takes a snapshot, writes to it, flushes, and writes to the origin at random
#            places; it ends cleanly, or is killed in the middle of that
#   continue the second side finds the snapshot bit for bit, writes to it, and to the origin; ends cleanly
#   merge    the first side finds the snapshot bit for bit, begins to merge it, and is killed half way
#   finish   the second side finds the merged device bit for bit, finishes, and the origin is the snapshot
#
# usage: dm-snapshot.sh
# environment
#   ONLY=REGEX      only cases whose names match
#   EXAMPLES=DIR    where the example 'images' is, default target/debug/examples
#   KEEP=1          keep the images
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
images=$examples/images
python=/usr/bin/python3

size=16387 # sectors of the origin: no whole number of any chunk
cow=30000

# own N - what is written to the snapshot: places and lengths
own() {
	if [ "$1" = 1 ]; then
		printf '%s\n' '0 8' '100 3' '128 128' '1000 700' '16380 7'
	else
		printf '%s\n' '4 9' '5000 16' '1500 900' '16000 1'
	fi
}

# ------------------------------------------------------------------ the kernel --
# These run in the guest as `dm-snapshot.sh --guest STEP DIR CHUNK`.

guest() {
	local step=$1 dir=$2 chunk=$3 real cowdev
	modprobe -a dm-mod dm-snapshot loop
	export DM_DISABLE_UDEV=1 # there is no udevd to make nodes
	real=$(losetup --find --show "$dir/origin.img") || return 1
	cowdev=$(losetup --find --show "$dir/cow.img") || return 1
	case $step in
	take | take-cut | go)
		dmsetup create snap --table "0 $size snapshot $real $cowdev P $chunk" || return 1
		dmsetup create origin --table "0 $size snapshot-origin $real" || return 1
		;;
	finish)
		dmsetup create merge --table "0 $size snapshot-merge $real $cowdev P $chunk" || return 1
		dmsetup status merge
		cmp /dev/mapper/merge "$dir/expected.img" || return 1
		;;
	merge-cut)
		dmsetup create snap --table "0 $size snapshot $real $cowdev P $chunk" || return 1
		cmp /dev/mapper/snap "$dir/expected.img" || return 1
		dmsetup remove snap
		dmsetup create merge --table "0 $size snapshot-merge $real $cowdev P $chunk" || return 1
		;;
	esac
	case $step in
	take*)
		guest_writes 1 && guest_work 3 300 || return 1
		if [ "$step" = take-cut ]; then
			guest_work 5 100000 &
			sleep "0.$((RANDOM % 8 + 1))"
			busybox poweroff -nf
		fi
		;;
	go)
		cmp /dev/mapper/snap "$dir/expected.img" || return 1
		guest_writes 2 && guest_work 7 300 || return 1
		;;
	merge-cut)
		guest_until half
		busybox poweroff -nf
		;;
	finish)
		guest_until merged
		cmp /dev/mapper/merge "$dir/expected.img" || return 1
		;;
	esac
	dmsetup status
	dmsetup remove_all
	losetup --detach-all
	sync
}

guest_writes() {
	local at count
	while read -r at count; do
		dd if="$dir/other.img" of=/dev/mapper/snap skip="$at" seek="$at" count="$count" conv=notrunc,fsync status=none || return 1
	done < <(own "$1")
}

# guest_work SEED COUNT - writes what other.img has at random places of the origin
guest_work() {
	$python - "$dir/other.img" /dev/mapper/origin "$@" <<-'END'
		import os, random, sys
		source, target, seed, count = sys.argv[1:]
		draw = random.Random(int(seed))
		data = open(source, "rb").read()
		target = os.open(target, os.O_WRONLY)
		for i in range(int(count)):
		    at = draw.randrange(len(data) // 512)
		    n = draw.randint(1, 48)
		    os.pwrite(target, data[at * 512:(at + n) * 512], at * 512)
		    if i % 16 == 15:
		        os.fsync(target)
		os.fsync(target)
	END
}

# guest_until half|merged - looks at the merge until that is so
guest_until() {
	local first='' used metadata
	while :; do
		read -r _ _ _ used metadata < <(dmsetup status merge)
		used=${used%/*}
		[ "$used" -ge 0 ] 2>/dev/null || { dmsetup status merge; return 1; }
		first=${first:-$used}
		[ "$used" != "$metadata" ] || return 0
		[ "$1" = merged ] || [ $((used * 2)) -gt $((first + metadata)) ] || return 0
	done
}

if [ "${1:-}" = --guest ]; then
	shift
	guest "$@"
	exit
fi

# ------------------------------------------------------------------ the sides --

# kernel STEP - what of it comes as 'cut' ends with a power cut
kernel() {
	local status=0
	"$root/tests/oracle/uml-run" --timeout 120 --rw "$dir" "$here/dm-snapshot.sh" --guest "$1" "$dir" "$chunk" >"$dir/log" 2>&1 || status=$?
	case $1-$status in
	*-cut-123 | take-0 | go-0 | finish-0) return 0 ;;
	esac
	echo "the kernel's $1 ended with $status"
	cat "$dir/log"
	return 1
}

# ashlar STEP - likewise; it kills itself
ashlar() {
	local status=0 at count
	{
		printf 'disk real %s\ndisk cow %s\n' "$dir/origin.img" "$dir/cow.img"
		case $1 in
		take | take-cut | go | merge-cut) echo "device snap 0 $size snapshot real cow P $chunk" ;;
		finish) echo "device merge 0 $size snapshot-merge real cow P $chunk" ;;
		esac
		case $1 in
		take | take-cut | go) echo "device origin 0 $size snapshot-origin real" ;;
		esac
		case $1 in
		go | merge-cut) echo "dump snap $dir/seen.img" ;;
		finish) printf 'status merge\ndump merge %s\n' "$dir/seen.img" ;;
		esac
		case $1 in
		take*)
			own 1 | while read -r at count; do echo "copy snap $dir/other.img $at $count"; done
			printf 'flush snap\ncopies origin %s 3 300\n' "$dir/other.img"
			[ "$1" = take ] || printf 'die %s\ncopies origin %s 5 10000000\n' "$((RANDOM % 500 + 20))" "$dir/other.img"
			;;
		go)
			own 2 | while read -r at count; do echo "copy snap $dir/other.img $at $count"; done
			printf 'flush snap\ncopies origin %s 7 300\n' "$dir/other.img"
			;;
		merge-cut) printf 'suspend snap\ndevice merge 0 %s snapshot-merge real cow P %s\nhalf merge\ndie\n' "$size" "$chunk" ;;
		finish) printf 'merged merge\nstatus merge\nflush merge\n' ;;
		esac
		case $1 in
		take | go) printf 'flush origin\nstatus snap\nsuspend origin\nsuspend snap\n' ;;
		esac
	} >"$dir/commands"
	"$images" <"$dir/commands" >"$dir/log" 2>&1 || status=$?
	case $1-$status in
	*-cut-9 | take-0 | go-0 | finish-0) ;;
	*)
		echo "ashlar's $1 ended with $status"
		cat "$dir/log"
		return 1
		;;
	esac
	case $1 in
	go | merge-cut | finish) cmp "$dir/seen.img" "$dir/expected.img" ;;
	esac
}

# expect N - what the snapshot must show after the writes of that phase
expect() {
	local at count
	while read -r at count; do
		dd if="$dir/other.img" of="$dir/expected.img" skip="$at" seek="$at" count="$count" conv=notrunc status=none
	done < <(own "$1")
}

run_case() {
	local first=$1 chunk=$2 end=$3 second=kernel dir
	[ "$first" = ashlar ] || second=ashlar
	dir=$WORK/$first-$chunk-$end
	mkdir "$dir"
	head -c $((size * 512)) /dev/urandom >"$dir/origin.img"
	head -c $((size * 512)) /dev/urandom >"$dir/other.img"
	# Earlier data on the device are not part of a store.
	head -c $((cow * 512)) /dev/urandom >"$dir/cow.img"
	dd if=/dev/zero of="$dir/cow.img" bs=4096 count=1 conv=notrunc status=none
	cp "$dir/origin.img" "$dir/expected.img"
	$first "take${end/clean/}" || return 1
	expect 1
	$second go || return 1
	expect 2
	$first merge-cut || return 1
	$second finish || return 1
	cmp -n $((size * 512)) "$dir/origin.img" "$dir/expected.img" || return 1
	# How much the second side had left to merge.
	sed -n 's/.*snapshot-merge \([0-9]*\)\/[0-9]* \([0-9]*\)$/\1 sectors to merge, \2 of them metadata/p' "$dir/log" | head -n 1
}

[ $# = 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
needs "$images"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-dm-snapshot.XXXXXX") || exit 1
trap '[ "${KEEP:-}" ] && echo "kept: $WORK" || rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT TERM HUP

failed=0 ran=0
for first in kernel ashlar; do
	for chunk in 8 16 128; do
		for end in clean -cut; do
			name=$first-$chunk$([ $end = clean ] || echo -cut)
			[[ $name =~ ${ONLY:-} ]] || continue
			ran=$((ran + 1)) started=$SECONDS
			if why=$(run_case "$first" "$chunk" "$end" 2>&1); then
				printf 'pass %-16s %s, %d s\n' "$name" "$why" $((SECONDS - started))
			else
				printf 'FAIL %s\n%s\n' "$name" "$why"
				failed=$((failed + 1))
			fi
		done
	done
done
[ $ran != 0 ] || { echo "dm-snapshot.sh: no case matches" >&2; exit 1; }
echo "$((ran - failed)) of $ran cases passed"
[ $failed = 0 ]
