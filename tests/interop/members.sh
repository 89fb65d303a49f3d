#!/bin/bash
# members.sh SIDE STEP DIR CASES - one side's part of md-members.sh, for each case in a file.
#
# SIDE is kernel (inside UML) or ashlar; side-SIDE.sh says how each does things, here is what is
# done. STEP is first (make the array and begin), second (continue) or judge. Prints a line
# for each case: "pass NAME", or "FAIL NAME" followed by what went wrong.
#
# Between the sides nothing runs. What the second one has to copy to a member is seen by poison
# (poison.py): the sectors of the member are spoilt after the first step, and after the second one
# those that were not copied must be the ones that did not have to be. They get their old contents
# back, and the judge finds all copies equal and all sectors as written.
#
# shellcheck disable=SC2034,SC2154 # variables are shared with side-*.sh
set -u
side=$1 step=$2 arrays=$3 cases=$4
here=$(dirname "$(realpath "$0")")
python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to
used=4096              # KiB of each member that the array takes at first
stripe=64              # KiB, chunk size of a RAID10
chunk=8                # KiB, of the bitmap
# shellcheck source=/dev/null
. "$here/side-$side.sh"

# ------------------------------------------------------------------- words --

# until_true SECONDS COMMAND... - wait for it
until_true() {
	local _ seconds=$1
	shift
	for _ in $(seq $((seconds * 20))); do
		! "$@" || return 0
		sleep 0.05
	done
	echo "in vain: $*"
	for _ in array_state sync_action sync_completed resync_start degraded; do echo "$_: $(attribute $_ 2>&1)"; done
	return 1
}

is() { [ "$(attribute "$1" 2>/dev/null)" = "$2" ]; }
idle() { is sync_action idle && is resync_start none; }
whole() { idle && is degraded 0; }
replaced() { idle && [[ $(attribute "$(attribute_of m1)/state") == *faulty* ]]; }
# halfway - the position, as sync_max bounds it, has been reached
halfway() { [[ $(attribute sync_completed) == "$1 / "* ]]; }

# stamp VERB PHASE
stamp() {
	timeout 120 $python "$here/stamp.py" "$1" --seed "$name" --phase "$2" --few --sectors "$sectors" $target >"$dir/stamp" 2>&1 ||
		{ cat "$dir/stamp"; return 1; }
}

poison() { $python "$here/poison.py" "$@" || return 1; }

# field MEMBER NAME - of its superblock, in sectors; 0 if it has none
field() {
	local value
	value=$(examine "$1" | sed -n "s/^ *$2 : \([0-9]*\) sectors.*/\1/p")
	echo "${value:-0}"
}

# spread MEMBER [COUNT] - poison the sectors of its data, or so many of them
spread() { poison spread "$dir/$1.img" "$(field "$1" 'Data Offset')" "${2:-$((2 * used))}"; }

# touched MEMBER PHASE - bits of the bitmap, and sectors of the member, that a phase dirties
touched() {
	poison chunks --seed "$name" --phase "$2" --sectors "$sectors" --chunk $((2 * chunk)) --start "$(field "$1" 'Data Offset')" \
		--layout "$layout" --members "$members" --stripe $((2 * stripe)) --slot "${1#m}"
}

# same WHAT FOUND WANTED
same() { [ "$2" = "$3" ] || { echo "$1: $2, not $3"; return 1; }; }

# ------------------------------------------------------------------- cases --
# members is their number; all has their names, the spare's last if the scenario has one made; the
# member that things happen to is m1, the one that comes is $new.

make() {
	# Linux 6.1 does not resync the new part of an array with a bitmap when it grows.
	local options=(--metadata="$metadata" --level="$level" --raid-devices="$members" --size="${used}K"
		--assume-clean)
	[ "$scenario-$first" = grow-kernel ] || options+=(--bitmap=internal --bitmap-chunk="${chunk}K")
	[ "$level" = 1 ] || options+=(--layout="$layout" --chunk="${stripe}K")
	[ "$scenario" != spare ] || options+=(--spare-devices=1)
	# The bitmap of a new array is full, and that of one that was stopped is empty.
	create "${options[@]}" && start "${all[@]}" && stamp write 1 && stop || return 1
	[ "$scenario-$first" = grow-kernel ] ||
		same "dirty bits of a stopped array" "$(dirty_bits m0)" 0
}

# A member fails, the array is written without it, it comes back: dirty chunks are copied.
readd_first() {
	start "${all[@]}" && manage fail m1 && manage remove m1 && stamp write 2 && stop && spread m1
}
readd_second() {
	local touched lacking lacks dirty
	{ read -r touched lacking && read -r lacks; } < <(touched m1 2)
	dirty=$(dirty_bits m0)
	# The kernel unmarks what has all its copies on other members; ashlar keeps it marked.
	[ "$dirty" -ge "$lacking" ] && [ "$dirty" -le "$touched" ] || { echo "$dirty dirty bits, not $lacking to $touched"; return 1; }
	start "${others[@]}" && manage re-add m1 && until_true 20 whole && stop && poison lift "$dir/m1.img" "$lacks"
}

# interrupted MEMBER - its superblock says that half of it was recovered
interrupted() {
	local at
	at=$(field "$1" 'Recovery Offset')
	same "recovery offset" "$at" $used
}
# lift_rest MEMBER - exactly the other half was copied since it was poisoned
lift_rest() {
	poison lift "$dir/$1.img" "$(($(field "$1" 'Data Offset') + used))+$used"
}

# A new member is rebuilt halfway, and then the rest.
recover_first() {
	start "${all[@]}" && manage fail m1 && manage remove m1 && attribute sync_max $used && manage add "$new" &&
		until_true 20 halfway $used && stop && interrupted "$new" && spread "$new"
}
recover_second() { start "${others[@]}" "$new" && until_true 20 whole && stop && lift_rest "$new"; }

# A member is replaced halfway, and then the rest.
replace_first() {
	start "${all[@]}" && manage add "$new" && attribute sync_max $used && manage replace m1 --with "$new" &&
		until_true 20 halfway $used && stop && interrupted "$new" && spread "$new"
}
replace_second() {
	start "${all[@]}" "$new" && until_true 20 replaced && manage remove m1 && stop && lift_rest "$new"
}

# A spare takes the place of a member that fails.
spare_first() { start "${all[@]}" && stamp write 2 && stop; }
spare_second() { start "${all[@]}" && manage fail m1 && until_true 20 whole && manage remove m1 && stop; }

# The array grows, and is resynced halfway through its new part, and then the rest. m1 has second
# copies only.
grow_first() {
	local half=$((used * 3)) new_part
	[ "$level" = 1 ] || half=$((half * members / 2))
	new_part=$(($(field m1 'Data Offset') + 2 * used))
	poison spread "$dir/m1.img" $new_part $((2 * used)) &&
		start "${all[@]}" && attribute sync_max $half && grow $((2 * used))K && until_true 20 halfway $half && stop &&
		poison lift "$dir/m1.img" $new_part+$used && poison spread "$dir/m1.img" $new_part $((2 * used))
}
grow_second() {
	local rest
	rest=$(($(field m1 'Data Offset') + 3 * used))
	# From a bitmap the kernel syncs the chunk that ends where the rest begins, too.
	start "${all[@]}" && until_true 20 whole && stop &&
		poison lift "$dir/m1.img" $rest+$used $((rest - 2 * chunk))+$((2 * chunk))
}

# The kernel notes bad blocks on m0, which are spoilt. ashlar reads them from the other copy; then that
# leaves, and for a new member these sectors count as bad: no member has them.
listed() { echo "$(($(field m0 'Data Offset') + 1000)) 16"; }
badblocks_first() {
	start "${all[@]}" && attribute rd0/bad_blocks "$(listed)" &&
		# A change of a flag has the superblocks written, and the lists with them.
		attribute rd0/state writemostly && attribute rd0/state -writemostly && stop &&
		same "list" "$(bad_blocks_on m0)" "$(listed)" && poison spread "$dir/m0.img" "$(listed | cut -d ' ' -f 1)" 16
}
badblocks_second() {
	start "${all[@]}" && stamp verify 1 && manage fail m1 && manage remove m1 && manage add "$new" &&
		until_true 20 whole && stop && poison lift "$dir/m0.img" ""
}
# Both sides read both lists, from the disks and in the running array.
judge_badblocks() {
	local member
	for member in m0 "$new"; do same "list of $member" "$(bad_blocks_on "$member")" "$(listed)" || return 1; done
	start "${present[@]}" && until_true 20 whole && same "rd0/bad_blocks" "$(attribute rd0/bad_blocks)" "$(listed)" &&
		same "rd1/bad_blocks" "$(attribute rd1/bad_blocks)" "$(listed)" && stop
}

# The copies are equal, and what was written is there.
judge_case() {
	local mismatches
	[ "$scenario" != badblocks ] || { judge_badblocks; return; }
	start "${present[@]}" && until_true 20 whole && same "component_size" "$(attribute component_size)" $size &&
		attribute sync_action check && until_true 20 idle || return 1
	mismatches=$(attribute mismatch_cnt)
	same "mismatch_cnt" "$mismatches" 0 && stamp verify "$phase" && stop
}

# -------------------------------------------------------------------- main --

begin_side || exit 1
while IFS=$'\t' read -r name scenario first level layout metadata members; do
	dir=$arrays/$name
	cd "$dir" || exit 1
	sectors=$((2 * used))
	case $layout in
	-) ;;
	?2) sectors=$((sectors * members / 2)) ;;
	ls) sectors=$((sectors * (members - 1))) ;;
	ra) sectors=$((sectors * (members - 2))) ;;
	esac
	mapfile -t all < <(seq 0 $((members - 1)) | sed 's/^/m/')
	others=(m0 "${all[@]:2}") new=m$members present=("${all[@]}") phase=1 size=$used
	case $scenario in
	grow) size=$((2 * used)) ;;
	readd) phase=2 ;;
	spare) phase=2 all+=("$new") present=("${others[@]}" "$new") ;;
	recover | replace | badblocks) present=("${others[@]}" "$new") ;;
	esac
	case $step in
	first) steps() { make && "${scenario}_first"; } ;;
	second) steps() { "${scenario}_second"; } ;;
	judge) steps() { judge_case; } ;;
	esac
	begin_case
	if output=$(exec 2>&1; steps; code=$?; [ $code = 0 ] || explain_case; end_case && exit $code); then
		echo "pass $name"
	else
		echo "FAIL $name"
		printf '%s\n' "$output" | sed 's/^/     /'
	fi
done <"$cases"
