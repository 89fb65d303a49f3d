# shellcheck shell=bash
# until.sh - waiting, with limits that only a hang reaches: a busy machine is slow. Sourced.

# until_done SECONDS WHAT COMMAND... - asks every 50 ms; for suites that have a function fail
until_done() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		[ $SECONDS -le $end ] || fail "not within the time: $what"
		sleep 0.05
	done
}

# until_it PID COMMAND... - asks every 50 ms while the process PID lives; fails if it ends before, or after two minutes
until_it() {
	local end=$((SECONDS + 120)) pid=$1
	shift
	until "$@"; do
		if [ $SECONDS -gt $end ] || ! kill -0 "$pid" 2>/dev/null; then
			# It may have done so and then ended.
			"$@"
			return
		fi
		sleep 0.05
	done
}
