#!/bin/bash
# md-members.sh - members come and go, syncs are interrupted, and the other side continues.
#
# Each scenario has two halves; one is played by the kernel and mdadm (UML), one by ashlar, and then
# the other way round. Afterwards both find all copies equal and all sectors as written.
#
#   readd     a member fails and is removed, the array is written | the member is re-added: exactly
#             the dirty chunks are copied
#   recover   a member is rebuilt halfway | the rest is copied, and only that
#   replace   a member is replaced halfway | likewise, and then it leaves
#   spare     an array with a spare | a member fails, the spare takes its place
#   grow      the array grows and is resynced halfway | the rest is resynced, and only that
#   badblocks the kernel notes bad blocks | ashlar reads around them, and notes them on a new member
#             that it cannot give them to; both lists are read by both
#
# usage: md-members.sh
# environment
#   ALL=1           every scenario with every layout instead of one in four
#   ONLY=REGEX, ASHLAR=FILE, KEEP=1 as for md.sh
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
export ashlar

# name, scenario, who begins, level, layout, metadata, members
cases() {
	local scenario first shape shapes turn=0
	for first in kernel ashlar; do
		for scenario in readd recover replace spare grow badblocks; do
			[ $scenario-$first != badblocks-ashlar ] || continue # its attribute cannot be written
			shapes=('1 - 1.2 2' '10 n2 1.0 4' '10 f2 1.1 3' '10 o2 1.2 3')
			# The kernel grows no others, and of these m0 and m1 are copies throughout.
			[[ $scenario != @(grow|badblocks) ]] || shapes=("${shapes[@]:0:2}")
			[ "${ALL:-}" ] || shapes=("${shapes[turn++ % ${#shapes[@]}]}")
			# With parity the dirty chunks of a member are not those of its data, and nothing grows yet.
			[[ $scenario != @(recover|replace|spare) ]] || shapes+=('5 ls 1.2 4' '6 ra 1.1 5')
			for shape in "${shapes[@]}"; do
				# shellcheck disable=SC2086 # the shape's are four words
				set -- $shape
				printf '%s\t' "$scenario-raid$1-${2/-/x2}-$first" $scenario $first "$@"
				echo
			done
		done
	done
}

[ $# = 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
needs "$ashlar"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-md-members.XXXXXX") || exit 1
export WORK
trap '[ "${KEEP:-}" ] && echo "kept: $WORK" || rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT TERM HUP

cases | grep -E "${ONLY:-}" >"$WORK/cases" || { echo "md-members.sh: no case matches" >&2; exit 1; }
awk -F '\t' '$3 == "kernel"' "$WORK/cases" >"$WORK/kernel"
awk -F '\t' '$3 == "ashlar"' "$WORK/cases" >"$WORK/ashlar"
while IFS=$'\t' read -r name _ _ _ _ _ members; do
	mkdir -p "$WORK/arrays/$name"
	for ((i = 0; i <= members; i++)); do truncate -s $((11 * 1024 + 41))K "$WORK/arrays/$name/m$i.img"; done
done <"$WORK/cases"

# side SIDE STEP CASES - one side plays its part of some cases; others may be played meanwhile
side() {
	[ -s "$3" ] || { : >"$WORK/verdicts.$1"; return; }
	if [ "$1" = ashlar ]; then
		"$here/members.sh" ashlar "$2" "$WORK/arrays" "$3"
	else
		"$root/tests/oracle/uml-run" --timeout $((120 + 30 * $(wc -l <"$3"))) --rw "$WORK/arrays" --log "$WORK/klog.$2" \
			"$here/members.sh" kernel "$2" "$WORK/arrays" "$3"
	fi >"$WORK/verdicts.$1" 2>&1
}

# stage WHAT - the verdicts of both sides are in; after a failure the arrays are in no known state
stage() {
	local passed count
	wait
	passed=$(cat "$WORK"/verdicts.* | grep -c '^pass ')
	count=$(wc -l <"$WORK/cases")
	printf '%-58s %d of %d, %d s\n' "$1" "$passed" "$count" $((SECONDS - started))
	started=$SECONDS
	[ "$passed" != "$count" ] || return 0
	cat "$WORK"/verdicts.* | grep -v '^pass '
	exit 1
}

started=$SECONDS
/usr/bin/python3 "$here/poison.py" selftest >"$WORK/selftest" || { cat "$WORK/selftest"; exit 1; }
side kernel first "$WORK/kernel" & side ashlar first "$WORK/ashlar" & stage "one side begins"
side kernel second "$WORK/ashlar" & side ashlar second "$WORK/kernel" & stage "the other side continues"
side kernel judge "$WORK/ashlar" & side ashlar judge "$WORK/kernel" & stage "all copies are equal, all sectors as written"
side kernel judge "$WORK/kernel" & side ashlar judge "$WORK/ashlar" & stage "and so finds the other side"
