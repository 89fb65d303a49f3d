# shellcheck shell=bash
# until.sh - waiting; sourced by suites that have a function fail.

# until_done SECONDS WHAT COMMAND... - asks every 50 ms
until_done() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		[ $SECONDS -le $end ] || fail "not within the time: $what"
		sleep 0.05
	done
}
