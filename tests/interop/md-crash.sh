#!/bin/bash
# md-crash.sh - md arrays whose server dies in the middle of writing.
#
#   stop     the kernel (UML) makes arrays with bitmaps; ashlar serves them, they are written over
#            NBD, ashlar is stopped with SIGTERM; the kernel assembles them without a resync and
#            finds all copies equal
#   crash    ashlar serves them, they are written, ashlar is killed with SIGKILL at a random time;
#            the kernel resyncs them, then finds all copies equal, and what was flushed is there
#            (crash.py); ROUNDS times, each with the arrays as the last one left them. Of an array with a
#            partial parity log all that was flushed is there without each member, too, for the kernel and for
#            ashlar, and no resync follows
#   power    the kernel writes them, its guest is killed with what was in its page cache; ashlar
#            resyncs them, finds all copies equal, what was flushed is there; after a clean stop the
#            kernel agrees. Without a member Linux may return wrong data if the newest log of another ends with its
#            area (docs/upstream.md, B5): that is printed, and only ashlar must be right then
#
# usage: md-crash.sh [--kernel-only]
#   --kernel-only   the last part alone, with the kernel in ashlar's place: needs no ashlar binary
# environment
#   ROUNDS=N        default 3
#   ONLY=REGEX, ASHLAR=FILE, JOBS=N, KEEP=1 as for md.sh
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
jobs=${JOBS:-$(nproc)}
rounds=${ROUNDS:-3}
python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to

# name, level, layout, chunk in KiB, metadata, bitmap, sizes in KiB; as cases.py prints them
cases() {
	tr -s ' ' '\t' <<-END
		raid1-x3          1   -   0   1.2   internal  8233,8275,8199
		raid1-x2-0.90     1   -   0   0.90  internal  8233,8275
		raid10-n2-x4      10  n2  64  1.0   internal  6185,6227,6151,6263
		raid10-n2-x3      10  n2  64  1.1   none      6185,6227,6151
		raid10-f2-x3      10  f2  64  1.1   internal  6185,6227,6151
		raid10-o2-x3      10  o2  64  1.2   internal  6185,6227,6151
		raid5-ls-x4       5   left-symmetric   64  1.2   internal  6185,6227,6151,6263
		raid6-ra-x5       6   right-asymmetric 4   1.1   none      6185,6227,6151,6263,6199
		raid4-x3          4   -   512 1.0   internal  6185,6227,6151
		raid5-ppl-x4      5   left-symmetric   64  1.2   ppl  8233,8275,8199,8311
		raid5-ppl-x3      5   right-asymmetric 4   1.0   ppl  8233,8275,8199
	END
}

# ------------------------------------------------------------------ one case --
# These run as `md-crash.sh --case STEP NAME` with WORK set, so that xargs can run several.

fields() {
	# shellcheck disable=SC2034 # all fields have names
	IFS=$'\t' read -r name level layout chunk metadata bitmap sizes < <(grep "^$1	" "$WORK/cases")
	dir=$WORK/arrays/$name
	socket=$WORK/$name.nbd
}

crash() {
	timeout 120 $python "$here/crash.py" "$1" --seed "$name" --state "$dir/state" --log "$dir/log" --discards "${@:2}" "nbd:$socket"
}

# start_server [ARGUMENT...] - serve the case's members read-write, or as the arguments say
start_server() {
	[ $# != 0 ] || set -- "$dir"/m?.img
	"$ashlar" serve "$@" --nbd "unix:$socket" --control "$socket.control" >"$socket.log" 2>&1 </dev/null &
	server=$!
	! until_it $server [ -S "$socket" ] || return 0
	echo "the server did not start"
	cat "$socket.log"
	return 1
}

# end_server SIGNAL STATUS - it must still be there, and end with that status
end_server() {
	local status=0
	kill "-$1" $server || { echo "the server went away"; status=1; }
	# The shell announces who was killed: not here.
	{ wait $server; } 2>/dev/null
	local ended=$?
	[ $ended = "$2" ] || { echo "the server ended with $ended"; status=1; }
	[ $status = 0 ] || sed 's/^/server: /' "$socket.log"
	rm -f "$socket" "$socket.control"
	return $status
}

# writing PID - the first batch of the crash.py below PID has been flushed: the array is active
writing() {
	! until_it "$1" [ -s "$dir/log" ] || return 0
	echo "nothing was written"
	return 1
}

random_sleep() { sleep "$((RANDOM % 1000 + 1))e-3"; }

step_stop() {
	: >"$dir/discards"
	start_server || return 1
	crash write --seconds 1 || { end_server KILL 137; return 1; }
	end_server TERM 0
}

step_crash() {
	local writer status=0
	: >"$dir/discards" && : >"$dir/log" && echo 1 >"$dir/unit"
	start_server || return 1
	crash write &
	writer=$!
	writing $writer && random_sleep || status=1
	end_server KILL 137 || status=1
	wait $writer || { echo "crash.py write ended with $?"; status=1; }
	sleep 0.2 # I/O that the dead process had in flight
	# Linux would not replay it.
	[ "$bitmap" != ppl ] || [ -z "$($python "$here/md_member.py" beyond "$dir"/m?.img)" ] || { echo "a newest log ends with its area"; status=1; }
	# What the bitmap says, for mdadm to find the same.
	[ "$bitmap" != internal ] || "$ashlar" md examine --bitmap "$dir/m0.img" | sed -n 's/.* bits (chunks), \([0-9]*\) dirty .*/\1/p' >"$dir/bits"
	return $status
}

step_power() {
	local guest image status=0 disks=()
	if [ "$bitmap" = ppl ]; then
		# Linux acknowledges a flush of such an array without flushing a member (docs/upstream.md, B2), so these must not have
		# a cache in the guest, as loop devices do.
		for image in "$dir"/m?.img; do disks+=(--disk "$image"); done
	fi
	rm -f "$dir/discards" && : >"$dir/log" && echo 8 >"$dir/unit"
	grep "^$name	" "$WORK/cases" >"$dir/case"
	"$root/tests/oracle/uml-run" --timeout 120 --rw "$WORK/arrays" "${disks[@]}" "$here/md-guest.sh" write "$WORK/arrays" "$dir/case" >"$dir/guest" 2>&1 &
	guest=$!
	writing $guest && random_sleep || status=1
	kill -TERM $guest || { echo "the guest ended on its own"; status=1; }
	{ wait $guest; } 2>/dev/null
	[ $status = 0 ] || sed 's/^/guest: /' "$dir/guest"
	return $status
}

# without - of an array with a partial parity log, all that was flushed is there without each of its members, and nothing changes.
# $dir/unit has the sectors that its writer writes at least.
step_without() {
	[ "$bitmap" = ppl ] || return 0
	local missing status image members discards=()
	[ ! -e "$dir/discards" ] || discards=(--discards)
	for missing in "$dir"/m?.img; do
		members=() status=0
		for image in "$dir"/m?.img; do [ "$image" = "$missing" ] || members+=("$image"); done
		start_server --read-only --run "${members[@]}" || return 1
		timeout 120 $python "$here/crash.py" verify --seed "$name" --state "$dir/state" --log "$dir/log" --degraded "$(<"$dir/unit")" "${discards[@]}" "nbd:$socket" || status=1
		end_server TERM 0 || status=1
		[ $status = 0 ] || { echo "without ${missing##*/}"; return 1; }
	done
}

# md ATTRIBUTE [VALUE] - read or write an attribute of the array that is served
md() (
	set -o pipefail
	local device
	device=$("$ashlar" get --control "$socket.control" proc/mdstat | sed -n 's/^ *\(md[0-9]*\) : active.*/\1/p')
	if [ $# = 1 ]; then
		"$ashlar" get --control "$socket.control" "sys/block/$device/md/$1" | sed 's/^[^ ]*: //'
	else
		"$ashlar" set --control "$socket.control" "sys/block/$device/md/$1" "$2"
	fi
)

# idle - wait for the end of a resync or check, at most a minute
idle() {
	local _ state
	for _ in $(seq 600); do
		state=$(md sync_action 2>&1 && md resync_start 2>&1) || break
		[ "$state" != $'idle\nnone' ] || return 0
		sleep 0.1
	done
	echo "sync_action and resync_start: $state"
	return 1
}

# ashlar assembles the arrays as the kernel left them, resyncs, checks
step_recover() {
	local status=0
	start_server || return 1
	idle && md sync_action check && idle || status=1
	[ "$(md mismatch_cnt)" = 0 ] || { echo "mismatch_cnt is $(md mismatch_cnt)"; status=1; }
	# The guest wrote without --discards.
	timeout 120 $python "$here/crash.py" verify --seed "$name" --state "$dir/state" --log "$dir/log" "nbd:$socket" || status=1
	end_server TERM 0 || status=1
	return $status
}

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
parts='stop crash power' judge=ashlar
case ${1:-} in
--kernel-only) parts=power judge=kernel ;;
'') ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
[ $judge = kernel ] || needs "$ashlar"

WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-md-crash.XXXXXX") || exit 1
export WORK
trap '[ "${KEEP:-}" ] && echo "kept: $WORK" || rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT TERM HUP
cases | grep -E "${ONLY:-}" >"$WORK/cases" || { echo "md-crash.sh: no case matches" >&2; exit 1; }
while IFS=$'\t' read -r name _ _ _ _ _ sizes; do
	mkdir -p "$WORK/arrays/$name"
	i=0
	for size in ${sizes//,/ }; do truncate -s "${size}K" "$WORK/arrays/$name/m$((i++)).img"; done
done <"$WORK/cases"

# stage COMMAND... - run COMMAND, which prints a verdict for each case; count the verdicts. After
# a failure the arrays are in no known state: show it in full, and end.
stage() {
	"$@" >"$WORK/verdicts"
	sed -n 's/^pass \(.*, without .*\)/  \1/p' "$WORK/verdicts"
	cat "$WORK/verdicts" >>"$WORK/all"
	[ "$(grep -c '^pass ' "$WORK/verdicts")" = "$(wc -l <"$WORK/cases")" ] && return
	echo "$*:"
	grep -v '^pass ' "$WORK/verdicts"
	exit 1
}

# guests MODE - run md-guest.sh on all cases, split over $jobs guests
guests() {
	local list pids=()
	rm -f "$WORK"/guest.*
	split -n "r/$jobs" "$WORK/cases" "$WORK/guest."
	for list in "$WORK"/guest.??; do
		[ -s "$list" ] || continue
		"$root/tests/oracle/uml-run" --timeout 300 --rw "$WORK/arrays" --log "$list.klog" \
			"$here/md-guest.sh" "$1" "$WORK/arrays" "$list" >"$list.out" 2>&1 &
		pids+=($!)
	done
	wait "${pids[@]}"
	cat "$WORK"/guest.??.out
}

# steps STEP - run a step of every case on the host
steps() { cut -f1 "$WORK/cases" | xargs -r -P "$jobs" -I NAME "$0" --case "$1" NAME; }

# count WHAT - verdicts that end so
count() { grep -c "$1\$" "$WORK/all"; }

started=$SECONDS
report() {
	printf '%-58s %d s\n' "$1" $((SECONDS - started))
	started=$SECONDS
	: >"$WORK/all"
}

{ $python "$here/crash.py" selftest && $python "$here/md_member.py" selftest; } >"$WORK/selftest" || { cat "$WORK/selftest"; exit 1; }
stage guests prepare
arrays=$(wc -l <"$WORK/cases")
report "the kernel makes $arrays arrays"
for part in $parts; do
	case $part in
	stop)
		stage steps stop
		stage guests stopped
		report "$arrays stopped by SIGTERM: no resync, copies equal"
		;;
	crash)
		for ((round = 0; round < rounds; round++)); do
			stage steps crash
			stage guests missing
			stage steps without
			stage guests recover
		done
		report "$((rounds * arrays)) killed while writing: resynced, nothing flushed lost"
		;;
	power)
		for ((round = 0; round < rounds; round++)); do
			stage steps power
			stage guests missing
			[ $judge = kernel ] || stage steps without
			if [ $judge = kernel ]; then
				stage guests recover
			else
				stage steps recover
				stage guests stopped
			fi
		done
		report "$((rounds * arrays)) guests killed while writing: $judge resynced, nothing lost"
		;;
	esac
done
