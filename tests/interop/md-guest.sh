#!/bin/bash
# md-guest.sh MODE DIR CASES - the kernel's half of the md suite; runs inside UML.
#
#   make    per case: mdadm creates the array on DIR/NAME/m*.img, phase 1 is written and read
#           back through a new assembly, the copies are compared by the kernel
#   judge   per case: mdadm examines and assembles what ashlar made in DIR/NAME, phase 1 is
#           verified, the copies are compared, phase 2 is written
# and for md-crash.sh:
#   prepare per case: mdadm creates the array, with a bitmap of small chunks if any
#   stopped per case: assembled without a resync, the copies are equal, crash.py verifies
#   recover per case: mdadm counts the dirty bits that ashlar did, assembled with a resync, afterwards
#           the copies are equal, crash.py verifies
#   missing per case with a partial parity log: copies of the members are assembled without each of them, crash.py
#           verifies
#   write   the first case: assembled, crash.py writes until the guest is killed
#
# CASES is a file of lines as tests/interop/cases.py prints them. Prints one line per case:
# "pass NAME" (and with recover, how much was resynced) or "FAIL NAME" followed by what went
# wrong. Exit code 1 if any failed.
set -u
mode=$1 dir=$2 cases=$3
here=$(dirname "$(realpath "$0")")
md=/dev/md0
modprobe -a loop linear raid0 raid1 raid10 raid456
echo 1000000 >/proc/sys/dev/raid/speed_limit_min # resync and check without restraint

redundant() { [ "$level" != 0 ] && [ "$level" != linear ]; }

# stamp VERB PHASE - on the array of the current case
stamp() {
	local discards=()
	[ "$mode" = make ] || discards=(--discards)
	/usr/bin/python3 "$here/stamp.py" "$1" --seed "$name" --phase "$2" "${discards[@]}" $md
}

attach() {
	loops=()
	local image device disk
	for disk in DISK{0..9}; do
		[ -z "${!disk:-}" ] || loops+=("${!disk}")
	done
	[ ${#loops[@]} = 0 ] || return 0
	for image in "$dir/$name"/m?.img; do
		device=$(losetup --find --show "$image") || return 1
		loops+=("$device")
	done
}

detach() {
	[ ! -e /sys/block/md0/md ] || mdadm --quiet --stop $md
	[ ${#loops[@]} = 0 ] || [ -n "${DISK0:-}" ] || losetup --detach "${loops[@]}"
}

create() {
	if [ "$level-$metadata" = 0-0.90 ]; then
		/usr/bin/python3 "$here/create-0.90.py" "$chunk" "${loops[@]}"
		return
	fi
	local options=(--metadata="$metadata" --level="$level" --raid-devices=${#loops[@]} --homehost=none --name="${name:0:32}")
	[ "$metadata" != 0.90 ] || options=("${options[@]:0:3}")
	[ "$chunk" = 0 ] || options+=(--chunk="$chunk")
	[ "$layout" = - ] || options+=(--layout="$layout")
	! redundant || options+=(--assume-clean)
	case $bitmap in
	ppl) options+=(--consistency-policy=ppl) ;;
	*) ! redundant || options+=(--bitmap="$bitmap") ;;
	esac
	mdadm --quiet --create $md --run "${options[@]}" "$@" "${loops[@]}"
}

assemble() { mdadm --quiet --assemble $md "${loops[@]}" && [ "$(cat /sys/block/md0/md/array_state)" != inactive ]; }

# The array runs with every member and in the shape that the case says.
shape() {
	local state want
	state=$(cat /sys/block/md0/md/degraded 2>/dev/null || echo 0)
	[ "${state:-0}" = 0 ] || { echo "degraded: $state members missing"; return 1; }
	want=raid${level#linear}
	[ "$want" != raid ] || want=linear
	[ "$(cat /sys/block/md0/md/level)" = "$want" ] || { echo "level $(cat /sys/block/md0/md/level), not $want"; return 1; }
	[ "$(cat /sys/block/md0/md/raid_disks)" = ${#loops[@]} ] || { echo "$(cat /sys/block/md0/md/raid_disks) members"; return 1; }
	[ "$(cat /sys/block/md0/md/chunk_size)" = $((chunk * 1024)) ] || { echo "chunk $(cat /sys/block/md0/md/chunk_size)"; return 1; }
	case $layout in
	n?) want=$((256 + ${layout#n})) ;;
	f?) want=$((1 + 256 * ${layout#f})) ;;
	o?) want=$((65536 + 1 + 256 * ${layout#o})) ;;
	original) want=1 ;;
	alternate) want=2 ;;
	left-asymmetric) want=0 ;;
	right-asymmetric) want=1 ;;
	left-symmetric) want=2 ;;
	right-symmetric) want=3 ;;
	parity-first) want=4 ;;
	parity-last) want=5 ;;
	ddf-zero-restart) want=8 ;;
	ddf-N-restart) want=9 ;;
	ddf-N-continue) want=10 ;;
	left-asymmetric-6) want=16 ;;
	right-asymmetric-6) want=17 ;;
	left-symmetric-6) want=18 ;;
	right-symmetric-6) want=19 ;;
	parity-first-6) want=20 ;;
	-) return 0 ;;
	esac
	state=$(cat /sys/block/md0/md/layout)
	[ "${state%% *}" = $want ] || { echo "layout $state, not $want"; return 1; }
}

# crash VERB - crash.py on the array of the current case
crash() {
	local discards=()
	[ ! -e "$dir/$name/discards" ] || discards=(--discards)
	/usr/bin/python3 "$here/crash.py" "$1" --seed "$name" --state "$dir/$name/state" --log "$dir/$name/log" "${discards[@]}" "${@:2}" $md
}

# The array was running when it was left.
left_running() {
	local text
	text=$(mdadm --examine "${loops[@]}" 2>&1)
	grep -Eq '^ *State : active$' <<<"$text" || { printf '%s\n' "$text" "no member says that the array was active"; return 1; }
}

# mdadm counts the bits that ashlar counted in the bitmap of an array that was being written.
bits_agree() {
	local bits want
	[ -e "$dir/$name/bits" ] || return 0
	want=$(<"$dir/$name/bits")
	bits=$(mdadm --examine-bitmap "${loops[0]}" | sed -n 's/.* bits (chunks), \([0-9]*\) dirty .*/\1/p')
	[ "$bits" = "$want" ] && [ "$bits" -gt 0 ] || { echo "dirty bits: mdadm counts $bits, ashlar $want"; return 1; }
}

# resynced yes|no - the kernel did (or did not) make the copies equal after assembling
resynced() {
	local _ done=no
	# Debian lets arrays start read-only until they are written, and so without a resync.
	[ "$(cat /sys/block/md0/md/array_state)" != read-auto ] || mdadm --quiet --readwrite $md || return 1
	for _ in $(seq 1200); do
		[ "$(cat /sys/block/md0/md/sync_action) $(cat /sys/block/md0/md/resync_start)" != 'idle none' ] || break
		sleep 0.05
	done
	! dmesg | grep -q 'md: md0: resync done' || done=yes
	[ "$done" = "$1" ] || { echo "resynced: $done, not $1; $(cat /sys/block/md0/md/{sync_action,resync_start} | paste -s)"; return 1; }
}

# All copies are equal, and parity is right (where there is some).
copies_agree() {
	redundant || return 0
	echo check >/sys/block/md0/md/sync_action || return 1
	until [ "$(cat /sys/block/md0/md/sync_action)" = idle ]; do sleep 0.05; done
	local mismatches
	mismatches=$(cat /sys/block/md0/md/mismatch_cnt)
	[ "$mismatches" = 0 ] || { echo "mismatch_cnt is $mismatches"; return 1; }
}

# mdadm finds a sound superblock on every member, all of them clean.
superblocks_sound() {
	local text want=${#loops[@]}
	text=$(mdadm --examine "${loops[@]}" 2>&1)
	if [ "$(grep -Ec '^ *State : clean$' <<<"$text")" != "$want" ] ||
		[ "$(grep -Ec '^ *Checksum : [0-9a-f]+ - correct' <<<"$text")" != "$want" ]; then
		printf '%s\n' "$text"
		return 1
	fi
}

make_case() {
	attach && create && shape && stamp write 1 && copies_agree && mdadm --quiet --stop $md &&
		superblocks_sound && assemble && shape && stamp verify 1
}

judge_case() {
	attach && superblocks_sound && assemble && shape && stamp verify 1 && copies_agree &&
		stamp write 2 && copies_agree && mdadm --quiet --stop $md && superblocks_sound
}

prepare_case() {
	local chunk_of_bitmap=()
	[ "$bitmap" != internal ] || chunk_of_bitmap=(--bitmap-chunk=16K)
	attach && create "${chunk_of_bitmap[@]}" && shape && mdadm --quiet --stop $md && superblocks_sound
}

stopped_case() {
	attach && superblocks_sound && assemble && shape && resynced no && copies_agree &&
		crash verify && mdadm --quiet --stop $md && superblocks_sound
}

# beyond IMAGE... - those whose newest log ends with its area: Linux does not replay it (docs/upstream.md, B5). ashlar writes none.
beyond() { /usr/bin/python3 "$here/md_member.py" beyond "$@"; }

recover_case() {
	local resync=yes
	# Its log says what parity is to be.
	[ "$bitmap" != ppl ] || [ -n "$(beyond "$dir/$name"/m?.img)" ] || resync=no
	attach && left_running && bits_agree && assemble && shape && resynced $resync && copies_agree &&
		crash verify && mdadm --quiet --stop $md && superblocks_sound
}

missing_case() {
	[ "$bitmap" = ppl ] || return 0
	local copies=$dir/$name/copies missing image device status unread members
	attach
	for missing in "${!loops[@]}"; do
		mkdir -p "$copies" && cp --sparse=always "$dir/$name"/m?.img "$copies" || return 1
		losetup --detach "${loops[@]}"
		loops=() members=()
		for image in "$copies"/m?.img; do
			[ "$image" != "$copies/m$missing.img" ] || continue
			device=$(losetup --find --show "$image") || return 1
			loops+=("$device") members+=("$image")
		done
		status=0 unread=$(beyond "${members[@]}") || return 1
		mdadm --quiet --assemble --run $md "${loops[@]}" && crash verify --degraded "$(<"$dir/$name/unit")" || status=1
		mdadm --quiet --stop $md
		losetup --detach "${loops[@]}"
		rm -r "$copies"
		if [ $status != 0 ]; then
			echo "without member $missing"
			loops=()
			[ -n "$unread" ] || return 1
			echo "B5: without member $missing Linux did not replay the newest log of $(sed 's,.*/,,' <<<"$unread" | paste -sd' ')"
		fi
		attach
	done
}

write_case() { attach && assemble && shape && crash write; }

bad='BUG|WARNING|I/O error|md/raid.*(error|nvalid|annot|failure)|md: .*(invalid|failed|kicking|not clean)'
[ "$mode" != recover ] || bad=${bad/|not clean/}
failed=0
while IFS=$'\t' read -r name level layout chunk metadata bitmap _; do
	loops=()
	dmesg --clear
	if output=$(exec 2>&1; "${mode}_case"; code=$?; detach && exit $code) &&
		! dmesg | grep -Eq "$bad"; then
		how=''
		if [ "$mode" = recover ]; then
			how=' resynced by the bitmap'
			if [ "$bitmap" = ppl ]; then
				how=' by its partial parity log'
			elif [ "$bitmap" = none ] || dmesg | grep -q 'bitmap file is out of date'; then how=' resynced in full'; fi
		fi
		[ "$mode" != missing ] || how=$(sed -n 's/^B5:/,/p' <<<"$output")
		echo "pass $name$how"
	else
		failed=1
		echo "FAIL $name"
		{ printf '%s\n' "$output"; dmesg | tail -n 20; } | sed 's/^/     /'
	fi
done <"$cases"
exit $failed
