#!/bin/bash
# md-scenarios.sh - the scenarios of mdadm's own tests for RAID 4, 5 and 6, on ashlar, with the kernel as judge.
#
# A scenario has steps: ashlar takes some, on image files, and the kernel with mdadm takes the others, inside UML. A step is
# written once; side-ashlar.sh and side-kernel.sh know how each side does what it says. The scenarios, and what they follow:
#
#   raid4 raid5 raid6       00raid4 00raid5 00raid6   made over garbage and synced; sizes, ext4, files; made with members missing
#   raid6-one-missing       00raid6                   made over garbage without one member: P and Q must fit each other
#   r5fail r5fail-resync    01r5fail                  members fail during the first recovery, and during the first resync
#   raid6integ-LAYOUT       01raid6integ              each pair of members leaves a running array, and comes back
#   r5assem                 03r5assem                 by UUID, by name; swapped, missing, stale members, those of another array
#   r5swap                  04r5swap                  superblocks of a big-endian machine are read, and not written
#   r5-internalbitmap       05r5-internalbitmap       marks go, stay while a member is away, and guide its recovery
#   r6-bitmapfile           05r6-bitmapfile           bitmaps in files are refused; an internal one is added instead
#   layouts-LEVEL           07layouts                 every layout, written without one or two members (md.sh has the rest)
#   check-LAYOUT            19raid6check              damage of all kinds is counted as the kernel counts it
#   repair-LAYOUT           19raid6repair             and repaired to the same bytes on all members; the data stay
#   repair-of-nothing       19repair-does-not-destroy a repair of sound members changes no byte
#
# usage: md-scenarios.sh [--kernel-only] [--tampered]
#   --kernel-only   the kernel takes ashlar's steps, too: shows that the suite itself is right
#   --tampered      some sector is spoilt behind each scenario's back, and each must fail: shows that it can
# environment
#   ALL=1           every layout of the scenarios that are named for one
#   ONLY=REGEX, ASHLAR=FILE, JOBS=N, KEEP=1 as for md.sh
#
# Debian packages: scripts/setup test. Works as an ordinary user.
#
# shellcheck disable=SC2034,SC2154 # variables are shared with side-*.sh
set -Eeuo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to
kib=$((5 * 1024 + 41))  # of each member: no multiple of a chunk

# ------------------------------------------------------------- a scenario --

# ours STEP... [+ STEP...]... - ashlar takes these steps
ours() {
	if [ "$KERNEL_ONLY" ]; then
		theirs "$@"
		return
	fi
	take "$@"
}

# theirs STEP... [+ STEP...]... - the kernel takes them, in a guest of its own
theirs() {
	"$root/tests/oracle/uml-run" --timeout 200 --rw "$CASE" --log "$CASE/klog" "$here/md-scenarios.sh" --kernel "$CASE" "$dir" "$name" "$@"
}

take() {
	local words=()
	for word in "$@" +; do
		if [ "$word" = + ]; then
			begin_case
			step="${words[*]}"
			"${words[@]}"
			step="the end of ${words[*]}"
			end_case
			words=()
		else
			words+=("$word")
		fi
	done
}

# tamper MEMBER - behind the scenario's back, if that is wanted
tamper() {
	[ "$TAMPERED" ] || return 0
	md_member spoil "$1.img" 200 1
	touch "$CASE.tampered"
}

# Made over garbage, so that nothing fits without a sync; then over zeroes, without members that come later.
scenario_raid() {
	local all=(m0 m1 m2) metadata
	[ "$1" = 4 ] || all+=(m3)
	[ "$1" != 6 ] || all+=(m4)
	for metadata in 1.2 0.90; do
		enter $metadata
		garbage "${all[@]}"
		ours creation "$1" $metadata "${all[@]}"
		tamper m1
		theirs judge 0 "${all[@]}" + files_first "${all[@]}"
		[ $metadata = 1.2 ] || continue
		ours files_second "${all[@]}"
		theirs files_third "${all[@]}" + judge 0 "${all[@]}"
	done
	enter degraded
	disks "${all[@]}"
	local make=(makes --level="$1" --raid-devices=${#all[@]} --chunk=64 --)
	case $1 in
	4) missing 'm2' 'm0 m1' "${make[@]}" m0 m1 missing ;;
	5) missing 'm0' 'm1 m2 m3' "${make[@]}" missing m1 m2 m3 ;;
	6) missing 'm0 m2' 'm1 m3 m4' "${make[@]}" missing m1 missing m3 m4 ;;
	esac
	tamper m1
	theirs judge 1 "${all[@]}"
}
# missing MEMBERS OTHERS STEP... - the step makes an array of the others
missing() {
	local away other
	read -ra away <<<"$1"
	read -ra other <<<"$2"
	ours "${@:3}" + writes 1 "${other[@]}"
	theirs reads 1 "${other[@]}"
	garbage "${away[@]}"
	ours completes "${away[@]}" -- "${other[@]}"
}

scenario_raid6_one_missing() {
	garbage m0 m1 m2 m3
	ours one_missing
	tamper m3
	ours contents sum m0 m3 + contents sum m2 m3 + contents sum m0 m2
	theirs contents sum m0 m2 m3 + contents sum m0 m3 + contents sum m0 m2
}

scenario_r5fail() {
	disks m0 m1 m2
	garbage m3 m4 m5
	theirs slow_creation
	ours first_recovery
	tamper m4
	theirs judge 2 m1 m2 m3 m4 m5
}
scenario_r5fail_resync() {
	garbage m0 m1 m2 m3 m4
	ours makes --level=5 --raid-devices=4 --chunk=64 -- m0 m1 m2 m3 + first_resync
	tamper m4
	theirs judge 0 m0 m1 m2 m4
}

scenario_raid6integ() {
	disks m0 m1 m2 m3 m4
	ours integrity "$1"
	tamper m2
	theirs judge 2 m0 m1 m2 m3 m4
}

scenario_r5assem() {
	enter ours
	disks m0 m1 m2 m3 m4 m5
	theirs assembly_first
	cp -r . ../theirs
	[ -z "$TAMPERED" ] || (cd changed && tamper m2)
	ours assembly
	enter theirs
	theirs assembly
}

scenario_r5swap() {
	disks m0 m1 m2 m3
	theirs swapped_first
	tamper m2
	for member in m0 m1 m2 m3; do md_member swap $member.img; done
	sha256sum m?.img >foreign
	[ "$KERNEL_ONLY" ] || ours swapped
	sha256sum --quiet -c foreign
	theirs swapped_back + judge 1 m0 m1 m2 m3
}

# bitmaps FIRST SECOND MEMBER... - what one side has marked, and only that, the other one copies
bitmaps() {
	local first=$1 second=$2 spoilt
	shift 2
	$first marks m1 "$@"
	# Somewhere else the member is spoilt now, and is so afterwards.
	spoilt=$(md_member unmarked m0.img)
	md_member spoil m1.img "$spoilt" 8
	$second marked m1 m0 "${@:3}"
	md_member spoil m1.img "$spoilt" 8
	tamper m2
	$first judge 2f "$@"
	$second judge 2f "$@"
}
scenario_r5_internalbitmap() {
	local sides
	for sides in 'ours theirs' 'theirs ours'; do
		enter "${sides% *}"
		disks m0 m1 m2
		${sides% *} makes --level=5 --raid-devices=3 --chunk=64 --bitmap=internal --bitmap-chunk=8 --assume-clean -- m0 m1 m2
		# shellcheck disable=SC2086 # two words
		bitmaps $sides m0 m1 m2
	done
}
scenario_r6_bitmapfile() {
	disks m0 m1 m2 m3 m4 m5 m6 m7
	theirs bitmap_in_file
	ours bitmap_inside
	bitmaps ours theirs m0 m1 m2 m3
}

layouts() {
	local more=''
	[ "$1" != 6 ] || more='ddf-zero-restart ddf-N-restart ddf-N-continue left-symmetric-6 left-asymmetric-6 right-symmetric-6
		right-asymmetric-6 parity-first-6'
	echo left-symmetric left-asymmetric right-symmetric right-asymmetric parity-first parity-last $more
}
scenario_layouts() {
	ours each_shape "$1" layout_first
	enter left-asymmetric
	tamper m2
	enter ''
	theirs each_shape "$1" layout_second
}

# members_of LEVEL - of RAID6 as few as can be: so all roles are near each other
members_of() {
	case $1 in
	4) echo m0 m1 m2 ;;
	*) echo m0 m1 m2 m3 ;;
	esac
}
scenario_check() {
	local all
	read -ra all < <(members_of "$1")
	enter ours
	disks "${all[@]}"
	theirs filled "$1" "${2-}" "${all[@]}"
	cp -r . ../theirs
	tamper m1
	ours counted "${all[@]}"
	data_of "${all[@]}" >data
	enter theirs
	theirs counted "${all[@]}"
	# A check writes nothing.
	same "data of members" "$(data_of "${all[@]}")" "$(<../ours/data)"
}
scenario_repair() {
	local all
	read -ra all < <(members_of "$1")
	disks "${all[@]}"
	theirs filled "$1" "${2-}" "${all[@]}"
	data_of "${all[@]}" >data
	enter theirs
	theirs repaired "$1" "${all[@]}"
	enter ours
	[ -z "$TAMPERED" ] || touch ../tampered "$CASE.tampered"
	ours repaired "$1" "${all[@]}"
	enter ''
	for member in "${all[@]}"; do cmp ours/$member/data theirs/$member/data; done
}
scenario_repair_of_nothing() {
	local all=(m0 m1 m2 m3 m4 m5 m6)
	disks "${all[@]}"
	theirs filled 6 left-symmetric "${all[@]}"
	tamper m1
	ours repaired_nothing "${all[@]}"
	theirs judge 1 "${all[@]}"
	ours repaired_nothing "${all[@]:1}" + reads 1 "${all[@]:1}"
	ours repaired_nothing "${all[@]:2}" + reads 1 "${all[@]:2}"
	theirs reads 1 "${all[@]:2}"
}

# cases - name, and the words of its function
cases() {
	local level layout integrity='left-symmetric parity-first ddf-N-continue'
	local shapes='4- 5-left-symmetric 6-left-symmetric 6-ddf-N-restart'
	if [ "${ALL:-}" ]; then
		integrity=$(layouts 6)
		shapes="4- $(layouts 5 | sed 's/[^ ]* */5-&/g') $(layouts 6 | sed 's/[^ ]* */6-&/g')"
	fi
	for level in 6 5; do echo "layouts-raid$level layouts $level"; done
	for layout in $integrity; do echo "raid6integ-$layout raid6integ $layout"; done
	echo r5assem r5assem
	for level in 4 5 6; do echo "raid$level raid $level"; done
	echo raid6-one-missing raid6_one_missing
	echo r5fail r5fail
	echo r5fail-resync r5fail_resync
	echo r5swap r5swap
	echo r5-internalbitmap r5_internalbitmap
	echo r6-bitmapfile r6_bitmapfile
	for layout in $shapes; do
		echo "check-raid${layout%-} check ${layout%%-*} ${layout#*-}"
		echo "repair-raid${layout%-} repair ${layout%%-*} ${layout#*-}"
	done
	echo repair-of-nothing repair_of_nothing
}

step='' where=''
case ${1:-} in
--kernel)
	# md-scenarios.sh --kernel CASE DIR NAME STEP... [+ STEP...]... - inside UML
	CASE=$2 dir=$3 name=$4
	cd "$dir"
	# shellcheck source=tests/interop/md-scenarios-steps.sh
	. "$here/md-scenarios-steps.sh" kernel
	begin_side
	trap 'code=$?; [ $code = 0 ] || { echo "the kernel in $step${where:+, $where}"; explain_case; }; exit $code' EXIT
	trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
	take "${@:5}"
	exit
	;;
--case)
	# md-scenarios.sh --case NAME FUNCTION ARGUMENT... - with WORK, KERNEL_ONLY and TAMPERED
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	ashlar=$(realpath "$ashlar")
	name=$2 CASE=$WORK/$2
	# shellcheck source=tests/interop/md-scenarios-steps.sh
	. "$here/md-scenarios-steps.sh" ashlar
	enter ''
	ended() {
		local code=$?
		if [ -n "${socket:-}" ] && [ $code != 0 ]; then
			[ -z "$step" ] || echo "ashlar in $step${where:+, $where}"
			[ -z "$server" ] || { kill -KILL "$server" && wait "$server"; } 2>/dev/null || true
			cat "$socket.said" 2>/dev/null | sed 's/^/server: /'
		fi
		exit $code
	}
	trap ended EXIT
	trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
	"scenario_$3" "${@:4}"
	exit
	;;
esac

# ------------------------------------------------------------------- suite --

KERNEL_ONLY='' TAMPERED=''
for word; do
	case $word in
	--kernel-only) KERNEL_ONLY=1 ;;
	--tampered) TAMPERED=1 ;;
	*)
		sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
done
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
[ "$KERNEL_ONLY" ] || needs "$ashlar"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-md-scenarios.XXXXXX")
export WORK KERNEL_ONLY TAMPERED
trap '[ "${KEEP:-}" ] && echo "kept: $WORK" || rm -rf --one-file-system "$WORK"' EXIT
trap 'exit 130' INT TERM HUP
$python "$here/md_member.py" selftest

# one NAME FUNCTION ARGUMENT... - its verdict, and after a failure what was said
one() {
	local started=$SECONDS verdict=ok
	timeout 300 "$here/md-scenarios.sh" --case "$@" >"$WORK/$1.out" 2>&1 </dev/null || verdict=FAIL
	if [ "$TAMPERED" ]; then
		if [ $verdict = ok ] || [ ! -e "$WORK/$1.tampered" ]; then
			echo "FAIL $1 did not notice that a member was spoilt"
			cat "$WORK/$1.out"
			return
		fi
		echo "ok $1 noticed: $(grep -Ev '^(line|server:|ashlar in|the kernel in|\[)' "$WORK/$1.out" | tail -n 1)"
	else
		{
			echo "$verdict $1, $((SECONDS - started)) s"
			[ $verdict = ok ] || sed 's/^/     /' "$WORK/$1.out"
		} >"$WORK/$1.verdict"
		cat "$WORK/$1.verdict"
	fi
	[ "${KEEP:-}" ] || rm -rf --one-file-system "${WORK:?}/$1"
}
export -f one
export here
cases | while read -r name words; do
	[[ ! $name =~ ${ONLY:-} ]] || echo "$name $words"
done >"$WORK/cases"
[ -s "$WORK/cases" ] || { echo "md-scenarios.sh: no scenario matches" >&2; exit 1; }
# shellcheck disable=SC2016 # for the other shell
xargs -P "${JOBS:-$(nproc)}" -d '\n' -I CASE bash -c 'one CASE' <"$WORK/cases" | tee "$WORK/verdicts"
passed=$(grep -c '^ok ' "$WORK/verdicts") || true
count=$(wc -l <"$WORK/cases")
echo "$passed of $count, $SECONDS s"
[ "$passed" = "$count" ]
