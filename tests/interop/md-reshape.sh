#!/bin/bash
# md-reshape.sh - arrays whose reshape the kernel (UML) began and did not end, read by ashlar.
#
# The guest makes an array, fills each block of 4 KiB with its number, and begins a reshape with mdadm. When a quarter has moved, the reshape is
# frozen and the array stopped, or (crash) the guest is killed. ashlar then serves the members read-only: with all of them, without each one,
# and with RAID 6 without each pair that includes the first; all blocks must have their numbers, and the images must be as they were.
#
#   inplace      the chunk size and the layout change, or a RAID 5 becomes a RAID 6, with another data offset: what lies beyond the position may
#                have been moved unseen by the superblocks (B0 of docs/upstream.md), so only what lies before it is compared, and ashlar must
#                say so
#
# usage: md-reshape.sh
# environment
#   ONLY=REGEX      only the cases whose name matches
#   ASHLAR=FILE     the program to test, default target/debug/ashlar
#   TAMPERED=1      the position on the members is another one: each case with metadata 1.x must fail
#   KEEP=1          keep the images and logs
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"

# name, level, layout, members, metadata, what mdadm --grow is given, spares, how it ends; sizes of members are 20 MiB
cases() {
	cat <<-'END'
		raid5-grow       5  left-symmetric   3 1.2   1 stop  --raid-devices=4
		raid5-grow-crash 5  right-asymmetric 3 1.2   1 crash --raid-devices=4
		raid5-grow-1.0   5  left-symmetric   3 1.0   2 stop  --raid-devices=5
		raid5-shrink     5  left-symmetric   4 1.2   0 stop  --raid-devices=3
		raid4-grow       4  -                3 1.2   1 stop  --raid-devices=4
		raid6-grow       6  left-symmetric   4 1.2   1 crash --raid-devices=5
		raid6-shrink     6  left-symmetric   5 1.2   0 stop  --raid-devices=4
		raid10-grow      10 n2               4 1.2   1 crash --raid-devices=5
		raid5-0.90       5  left-symmetric   3 0.90  1 stop  --raid-devices=4
		inplace-to-6     5  left-symmetric   3 1.2   1 stop  --level=6 --raid-devices=4
		inplace-chunk    5  left-symmetric   3 1.2   0 stop  --chunk=128 --layout=right-asymmetric
	END
}

fields() {
	read -r name level layout members metadata spares ending grow < <(cases | grep "^$1 ")
}

# pattern BLOCKS - each of 4 KiB filled with its number
pattern() {
	/usr/bin/python3 -c 'import sys
for i in range(int(sys.argv[1])): sys.stdout.buffer.write(i.to_bytes(8, "little") * 512)' "$1"
}

# ------------------------------------------------------------ in the guest --
if [ "${1:-}" = guest ]; then
	# md-reshape.sh guest CASE DIR
	fields "$2"
	shared=$3
	modprobe -a raid10 raid456
	md=/sys/block/md9/md
	disks=()
	for i in $(seq 0 $((members + spares - 1))); do
		disk=DISK$i
		disks+=("${!disk}")
	done
	options=(--level="$level" --raid-devices="$members" --chunk=64 --metadata="$metadata" --assume-clean --bitmap=none)
	[ "$layout" = - ] || options+=(--layout="$layout")
	options+=(--size=16384)
	[[ $metadata != 1.[12] ]] || options+=(--data-offset=2M)
	mdadm --quiet --create /dev/md9 --run "${options[@]}" "${disks[@]:0:members}"
	blocks=$(($(blockdev --getsize64 /dev/md9) / 4096))
	# What a shrunk array keeps.
	case $2 in
	*shrink) blocks=$((blocks * ($(cut -d= -f2 <<<"$grow") - (level == 6) - 1) / (members - (level == 6) - 1))) ;;
	esac
	pattern $blocks | dd of=/dev/md9 bs=1M oflag=direct iflag=fullblock status=none
	echo $blocks >"$shared/blocks"
	[ "$spares" = 0 ] || mdadm --quiet --add /dev/md9 "${disks[@]:members}"
	case $2 in
	*shrink)
		mdadm --quiet --grow /dev/md9 --array-size=$((blocks * 4))
		# mdadm 4.2 sets the members' new offset first, which the kernel refuses before it has the direction.
		echo backwards >$md/reshape_direction
		;;
	esac
	echo 2048 >$md/stripe_cache_size 2>/dev/null || true
	speed=2000
	[ "${name%%-*}" != inplace ] || speed=700
	echo $speed >$md/sync_speed_min
	echo $speed >$md/sync_speed_max
	read -ra words <<<"$grow"
	mdadm --grow /dev/md9 "${words[@]}" &
	case $2 in
	inplace*)
		# Of such a reshape the kernel records nothing for 10 s.
		sleep 12
		;;
	*)
		far=no
		for _ in $(seq 600); do
			read -r moved _ total <$md/sync_completed || true
			[ "$moved" = none ] || [ -z "$total" ] || [ $((moved * 4)) -lt "$total" ] || { far=yes && break; }
			sleep 0.1
		done
		[ $far = yes ] || { cat /proc/mdstat && echo "the reshape has not moved a quarter within 60 s" && exit 1; }
		;;
	esac
	cat /proc/mdstat
	cat $md/sync_completed $md/reshape_position
	if [ "$ending" = crash ]; then
		touch "$shared/now"
		sleep 1000
	fi
	echo frozen >$md/sync_action
	sleep 0.5
	cat $md/reshape_position
	pkill -f 'mdadm --grow' || true
	for _ in 1 2 3 4 5; do ! mdadm --quiet --stop /dev/md9 || exit 0; sleep 0.5; done
	exit 1
fi
[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

# ------------------------------------------------------------- on the host --
fail() {
	echo "FAIL $name: $*"
	[ ! -s "$W/log" ] || sed 's/^/     server: /' "$W/log"
	exit 1
}

# make_members - what the kernel left
make_members() {
	local i guest disks=()
	mkdir "$W/shared"
	for i in $(seq 0 $((members + spares - 1))); do
		truncate -s 20M "$W/m$i.img"
		disks+=(--disk "$W/m$i.img")
	done
	"$root/tests/oracle/uml-run" --timeout 100 --mem 256M "${disks[@]}" --rw "$W/shared" --log "$W/klog" "$here/md-reshape.sh" guest "$name" "$W/shared" >"$W/made" 2>&1 &
	guest=$!
	if [ "$ending" = crash ]; then
		for _ in $(seq 900); do
			[ ! -e "$W/shared/now" ] || break
			kill -0 $guest 2>/dev/null || break
			sleep 0.1
		done
		kill -TERM $guest 2>/dev/null || true
		{ wait $guest; } 2>/dev/null || true
		[ -e "$W/shared/now" ] || { cat "$W/made" && fail "the guest ended on its own"; }
	else
		wait $guest || { cat "$W/made" && fail "the array could not be made"; }
	fi
	pattern "$(<"$W/shared/blocks")" >"$W/want"
	[ -z "${TAMPERED:-}" ] || tamper
	sha256sum "$W"/m?.img >"$W/before"
}

# serve LOST... - the members that are left
serve() {
	local i left=()
	for i in $(seq 0 $((members + spares - 1))); do
		[[ " $* " == *" $i "* ]] || left+=("$W/m$i.img")
	done
	: >"$W/log"
	rm -f "$W/socket"
	"$ashlar" serve "${left[@]}" --read-only --run --nbd "unix:$W/socket" --control "$W/control" >"$W/log" 2>&1 </dev/null &
	server=$!
	! until_it $server grep -q '^ready' "$W/log" || return 0
	wait $server || true
	server=''
	return 1
}
stop() {
	kill -TERM $server
	wait $server || fail "the server ended with $?"
	server=''
}

# compare LOST - what was read, as far as it can be right
compare() {
	local skip=0 bytes
	bytes=$(stat -c %s "$W/want")
	if [[ $name == inplace* ]]; then
		grep -q "may have moved more than the superblocks record" "$W/log" || fail "nothing is said of what may be wrong"
		skip=$(($(sed -n 's/.* down to sector \([0-9]*\) of.*/\1/p' "$W/log" | head -n 1) * 512))
	fi
	cmp -i $skip -n $((bytes - skip)) "$W/want" "$W/got" || fail "wrong data without $1"
}

case_of() {
	local lost losses=('') i j started=$SECONDS
	W=$work/$name
	mkdir "$W"
	make_members
	for i in $(seq 0 $((members + spares - 1))); do
		losses+=("$i")
		[[ $name != *raid6* ]] || for j in $(seq 1 $((i - 1))); do losses+=("$j $i"); done
	done
	for lost in "${losses[@]}"; do
		# shellcheck disable=SC2086 # words
		serve $lost || fail "not served without ${lost:-any}"
		nbdcopy "nbd+unix:///md9?socket=$W/socket" "$W/got" || fail "the array cannot be read"
		compare "${lost:-any}"
		stop
	done
	sha256sum --quiet -c "$W/before" || fail "the images were written"
	"$ashlar" md detail "$W"/m?.img >"$W/detail" 2>&1 || true
	grep -Eq 'Reshape Status : [0-9]+% complete' "$W/detail" || { cat "$W/made" "$W/detail" && fail "md detail does not say how far the reshape is"; }
	echo "ok $name: ${#losses[@]} readings, $(sed -n 's/.*Reshape Status : //p' "$W/detail"), $((SECONDS - started)) s"
	[ "${KEEP:-}" ] || rm -rf --one-file-system "$W"
}

# tamper - all members record that the reshape is at the array's start (metadata 1.x)
tamper() {
	/usr/bin/python3 - "$W"/m?.img <<-'END'
		import struct, sys
		for path in sys.argv[1:]:
		    with open(path, "r+b") as image:
		        data = image.read()
		        at = data.find(struct.pack("<II", 0xa92b4efc, 1))
		        block = bytearray(data[at:at + 4096])
		        struct.pack_into("<Q", block, 104, 0)
		        struct.pack_into("<I", block, 216, 0)
		        used = 256 + 2 * struct.unpack_from("<I", block, 220)[0]
		        words = block[:used] + bytes(-used % 4)
		        total = sum(struct.unpack(f"<{len(words) // 4}I", words))
		        struct.pack_into("<I", block, 216, (total & 0xffffffff) + (total >> 32) & 0xffffffff)
		        image.seek(at)
		        image.write(block)
	END
}

needs "$ashlar"
ashlar=$(realpath "$ashlar")
server=''
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-reshape.XXXXXX")
ended() {
	local code=$?
	if [ -n "$server" ]; then
		kill -TERM "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	if [ "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
	exit $code
}
trap ended EXIT
trap 'exit 130' INT TERM HUP
ran=0
while read -r case _; do
	[[ $case =~ ${ONLY:-} ]] || continue
	fields "$case"
	case_of
	ran=$((ran + 1))
done < <(cases)
[ $ran -gt 0 ] || { echo "md-reshape.sh: no case matches" >&2; exit 1; }
