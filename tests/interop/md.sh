#!/bin/bash
# md.sh - a real kernel and mdadm agree with ashlar about md arrays, both ways.
#
#   kernel -> ashlar   mdadm and the kernel (UML) make arrays and fill them with stamps; ashlar
#                      serves them read-only over NBD, whole and with each member missing once,
#                      and every sector is compared
#   ashlar -> kernel   ashlar makes arrays; stamps, discards and zeroes are written over NBD;
#                      mdadm finds the superblocks sound, the kernel assembles, every sector is
#                      compared, the kernel finds all copies equal, and writes more
#   and back           ashlar serves what the kernel wrote last, every sector is compared
#
# usage: md.sh [--kernel-only]
#   --kernel-only   the kernel half of the first way alone: needs no ashlar binary
# environment
#   ALL=1           every combination of the parameters instead of a covering selection
#   ONLY=REGEX      only the cases whose name matches
#   ASHLAR=FILE     the program to test, default target/debug/ashlar
#   JOBS=N          guests and servers at a time, default: one per processor
#   KEEP=1          keep the images and logs
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
jobs=${JOBS:-$(nproc)}
python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to

# ------------------------------------------------------------------ one case --
# These run as `md.sh --case STEP NAME` with WORK set, so that xargs can run several.

fields() { IFS=$'\t' read -r name level layout chunk metadata bitmap sizes < <(grep -h "^$1	" "$WORK"/cases.?); }

# new_images DIR - empty, sparse member images of the case in DIR
new_images() {
	mkdir -p "$1"
	local size i=0
	for size in ${sizes//,/ }; do
		truncate -s "${size}K" "$1/m$i.img"
		i=$((i + 1))
	done
}

# with_server "SERVE ARGUMENTS" COMMAND... - run COMMAND while ashlar serves; $uri says where.
# ashlar must start, survive COMMAND, and end with 0 after SIGTERM.
with_server() {
	local server status=0 arguments=$1 socket
	shift
	socket=$(mktemp -u "$WORK/nbd.XXXXXX")
	uri=nbd:$socket
	# shellcheck disable=SC2086 # the arguments are words without blanks
	"$ashlar" serve $arguments --nbd "unix:$socket" --control "$socket.control" >"$socket.log" 2>&1 </dev/null &
	server=$!
	if until_it $server [ -S "$socket" ]; then
		"$@" || status=1
		kill -TERM $server 2>/dev/null || { echo "the server went away"; status=1; }
	else
		echo "the server did not start: ashlar serve $arguments"
		kill -KILL $server 2>/dev/null
		status=1
	fi
	wait $server || { echo "the server ended with $?"; status=1; }
	[ $status = 0 ] || sed 's/^/server: /' "$socket.log"
	rm -f "$socket" "$socket.log" "$socket.control"
	return $status
}

stamp() { timeout 120 $python "$here/stamp.py" "$1" --seed "$name" --phase "$2" "${@:3}" "$uri"; }
redundant() { [ "$level" != 0 ] && [ "$level" != linear ]; }

# verify_without MEMBER ACTION... - do the action while the member is away
verify_without() {
	local member=$1 status=0
	shift
	mv "$member" "$member.away"
	"$@" || { echo "without ${member##*/}"; status=1; }
	mv "$member.away" "$member"
	return $status
}

# verify_all DIR PHASE [--discards] - serve DIR's array read-only and compare it, then once
# more without each of its members: that is how the second and third copies get read, and parity. RAID 6 can lose each pair.
verify_all() {
	local dir=$1 phase=$2 member other status=0
	shift 2
	with_server "$dir/*.img --read-only" stamp verify "$phase" "$@" || return 1
	redundant || return 0
	local degraded=(with_server "$dir/*.img --read-only --run" stamp verify "$phase" "$@")
	for member in "$dir"/m?.img; do
		verify_without "$member" "${degraded[@]}" || status=1
		[ "$level" = 6 ] || continue
		for other in "$dir"/m?.img; do
			[[ $other > $member ]] || continue
			verify_without "$member" verify_without "$other" "${degraded[@]}" || status=1
		done
	done
	return $status
}

# Serving read-only must not change a byte.
step_read() {
	local before after
	before=$(cat "$WORK/a/$name"/*.img | sha256sum)
	verify_all "$WORK/a/$name" 1 || return 1
	after=$(cat "$WORK/a/$name"/*.img | sha256sum)
	[ "$before" = "$after" ] || { echo "serving read-only changed the images"; return 1; }
}

step_make() {
	local dir=$WORK/b/$name options
	new_images "$dir"
	options=(--level="$level" --metadata="$metadata" --raid-devices="$(tr , '\n' <<<"$sizes" | wc -l)")
	[ "$chunk" = 0 ] || options+=(--chunk="${chunk}K")
	[ "$layout" = - ] || options+=(--layout="$layout")
	! redundant || options+=(--bitmap="$bitmap" --assume-clean)
	"$ashlar" md create "${options[@]}" "$dir"/m?.img || { echo "ashlar md create ${options[*]}"; return 1; }
	with_server "$dir/*.img" stamp write 1 --discards || return 1
	"$ashlar" md examine "$dir/m0.img" >/dev/null || { echo "ashlar md examine"; return 1; }
	verify_all "$dir" 1 --discards
}

step_back() { verify_all "$WORK/b/$name" 2 --discards; }

if [ "${1:-}" = --case ]; then
	fields "$3"
	if output=$("step_$2" 2>&1); then
		echo "pass $name"
	else
		echo "FAIL $name"
		printf '%s\n' "$output" | sed 's/^/     /'
	fi
	exit 0
fi

# --------------------------------------------------------------------- suite --
case ${1:-} in
--kernel-only) kernel_only=1 ;;
'') kernel_only=0 ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
[ $kernel_only = 1 ] || needs "$ashlar"

WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-md.XXXXXX") || exit 1
export WORK
trap '[ "${KEEP:-}" ] && echo "kept: $WORK" || rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT TERM HUP
# a: arrays that mdadm makes, b: arrays that ashlar makes
"$here/cases.py" ${ALL:+--all} mdadm | grep -E "${ONLY:-}" >"$WORK/cases.a"
"$here/cases.py" ${ALL:+--all} ashlar | grep -E "${ONLY:-}" >"$WORK/cases.b"
[ -s "$WORK/cases.a" ] || [ -s "$WORK/cases.b" ] || { echo "md.sh: no case matches" >&2; exit 1; }
mkdir "$WORK/a" "$WORK/b"
failed=0

# stage WHAT CASES COMMAND... - run COMMAND, which prints a verdict for each case in a file;
# count the verdicts and show the failures in full
stage() {
	local passed count what=$1 cases=$2
	shift 2
	"$@" >"$WORK/verdicts"
	passed=$(grep -c '^pass ' "$WORK/verdicts")
	count=$(wc -l <"$cases")
	printf '%-44s %d of %d, %d s\n' "$what" "$passed" "$count" $((SECONDS - started))
	[ "$passed" = "$count" ] || { grep -v '^pass ' "$WORK/verdicts"; failed=1; }
	started=$SECONDS
}

# guests MODE SIDE - run md-guest.sh on all cases of a side, split over $jobs guests
guests() {
	local list pids=()
	rm -f "$WORK"/guest.*
	split -n "r/$jobs" "$WORK/cases.$2" "$WORK/guest."
	for list in "$WORK"/guest.??; do
		[ -s "$list" ] || continue
		"$root/tests/oracle/uml-run" --timeout $((60 + 15 * $(wc -l <"$list"))) --rw "$WORK/$2" --log "$list.klog" \
			"$here/md-guest.sh" "$1" "$WORK/$2" "$list" >"$list.out" 2>&1 &
		pids+=($!)
	done
	wait "${pids[@]}"
	cat "$WORK"/guest.??.out
}

# steps STEP SIDE - run a step of every case of a side on the host
steps() { cut -f1 "$WORK/cases.$2" | xargs -r -P "$jobs" -I NAME "$0" --case "$1" NAME; }

started=$SECONDS
$python "$here/stamp.py" selftest >"$WORK/selftest" || { cat "$WORK/selftest"; exit 1; }
while IFS=$'\t' read -r name level layout chunk metadata bitmap sizes; do new_images "$WORK/a/$name"; done <"$WORK/cases.a"
a=$WORK/cases.a b=$WORK/cases.b
stage "the kernel makes arrays and reads them back" "$a" guests make a
if [ $kernel_only = 0 ]; then
	stage "ashlar reads the kernel's arrays" "$a" steps read a
	stage "ashlar makes arrays and reads them back" "$b" steps make b
	stage "the kernel reads and writes ashlar's arrays" "$b" guests judge b
	stage "ashlar reads what the kernel wrote there" "$b" steps back b
fi
exit $failed
