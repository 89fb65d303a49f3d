#!/bin/bash
# side-kernel.sh - what members.sh has the kernel and mdadm do; sourced by it, inside UML.
#
# shellcheck disable=SC2034,SC2154 # variables are shared with members.sh

declare -A device # of a member
target=/dev/md0

# The kernel retries writes to known bad blocks; that is not a defect.
defects='BUG|WARNING|I/O error|md/raid.*(error|nvalid|annot)|md: .*(invalid|kicking|not clean)'

begin_side() {
	modprobe -a loop raid0 raid1 raid10 raid456
	echo 1000000 >/proc/sys/dev/raid/speed_limit_min # without restraint
}

begin_case() { dmesg --clear; }

# end_case - nothing of the case is left in this kernel, and it had nothing to complain about
end_case() {
	[ ! -e /sys/block/md0/md ] || stop || return 1
	local complaints
	complaints=$(dmesg | grep -E "$defects") || return 0
	printf '%s\n' "$complaints"
	return 1
}

explain_case() { dmesg | tail -n 25; }

# attach MEMBER... - they have devices
attach() {
	local member
	for member; do
		[ -n "${device[$member]:-}" ] || device[$member]=$(losetup --find --show "$dir/$member.img") || return 1
	done
}

devices() {
	local member
	for member; do echo "${device[$member]}"; done
}

# create OPTION... - make the array of all members, spares last
create() {
	# shellcheck disable=SC2046
	attach "${all[@]}" && mdadm --quiet --create $target --run --homehost=none --name="$name" "$@" $(devices "${all[@]}") &&
		mdadm --quiet --stop $target
}

# start MEMBER... - the array runs with these members and can be written
start() {
	# shellcheck disable=SC2046
	attach "$@" && mdadm --quiet --assemble $target --run $(devices "$@") || return 1
	# Debian lets arrays start read-only until they are written.
	[ "$(attribute array_state)" != read-auto ] || mdadm --quiet --readwrite $target
}

stop() {
	mdadm --quiet --stop $target || return 1
	losetup --detach "${device[@]}"
	device=()
}

# manage VERB MEMBER [--with MEMBER]
manage() {
	attach "$2" ${4:+"$4"} && mdadm --quiet --manage $target "--$1" "${device[$2]}" ${3:+"$3" "${device[$4]}"}
}

grow() { mdadm --quiet --grow $target "--size=$1"; }

# attribute PATH [VALUE] - read or write an attribute of the array
attribute() {
	if [ $# = 1 ]; then
		printf '%s\n' "$(<"/sys/block/md0/md/$1")" # cat would be a process more
	else
		echo "$2" >"/sys/block/md0/md/$1"
	fi
}

# attribute_of MEMBER - the directory of its attributes
attribute_of() { basename "${device[$1]}" | sed 's/^/dev-/'; }

# examine MEMBER [WHAT] - its superblock, bitmap or bad block log while the array is stopped. (mdadm
# looks for them on block devices only, and the images are on a file system without O_DIRECT.)
examine() {
	local loop status
	loop=$(losetup --find --show --read-only "$dir/$1.img") || return 1
	mdadm "--examine${2:+-$2}" "$loop"
	status=$?
	losetup --detach "$loop"
	return $status
}

dirty_bits() { examine "$1" bitmap | sed -n 's/.* bits (chunks), \([0-9]*\) dirty .*/\1/p'; }
bad_blocks_on() { examine "$1" badblocks | sed -n 's/^ *\([0-9]*\) for \([0-9]*\) sectors$/\1 \2/p'; }
