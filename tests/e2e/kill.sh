#!/bin/bash
# kill.sh - file systems on arrays whose daemon is killed with SIGKILL again and again, and nothing flushed is lost.
#
# ext4 and xfs on RAID1, RAID10, RAID5 and RAID6, with an ordinary and a lockless bitmap, through FUSE and a loop device. Each round:
# serve the members as the last kill left them, mount (which replays the journal while the array resyncs), verify,
# unmount, check the file system, mount again, write until the daemon is killed at a random moment. In most rounds a
# member fails before that, and returns before or after, or the array is checked. At the end everything heals, a check
# finds no mismatches, the daemon stops, and the copies on the members are compared (lockless bitmaps forget what was
# discarded, and its copies may differ then). With parity a member that fails returns before the kill, because the array would not start without
# it afterwards, unless it has a partial parity log; at the end the array is read without each member in turn, and is the same.
#
# What writes, and what is verified:
#   stamps.py   overwrites a file in sectors; what it flushed, and durably noted elsewhere, is there
#   fio         with O_DSYNC; what its state file says was completed is there. Another job writes and reads
#               back its data all the time, around the page cache
#   churn       files are flushed, then named after their checksum, then deleted at random, which discards
#
# usage: kill.sh [-r ROUNDS] [CASE...]    default: 3 rounds of each case, those of cases() below
# environment: ASHLAR=FILE the program, default target/debug/ashlar; SEED=N what is done when (but not how far it
#   got); KEEP=1 keep the files
# Needs root (loop devices, mounts) and the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"

# name, file system, bitmap, size of a member, how many, further arguments of create
cases() {
	cat <<-END
		raid1     ext4  internal  352M  2  --level=1
		raid1-ll  xfs   lockless  352M  2  --level=1
		near      xfs   internal  192M  4  --level=10 --layout=n2 --chunk=64K
		far-ll    ext4  lockless  192M  4  --level=10 --layout=f2 --chunk=64K
		five      ext4  internal  128M  4  --level=5 --chunk=64K
		six       xfs   internal  128M  5  --level=6 --chunk=16K
		five-ppl  ext4  ppl       128M  4  --level=5 --chunk=64K
	END
}

# churn DIRECTORY - until the file system is gone
churn() {
	local n=0 sum
	cd "$1"
	while head -c $((RANDOM * 16 + 1)) /dev/urandom >new && sync new && sum=$(sha256sum new) && mv new "${sum%% *}"; do
		n=$((n + 1))
		if [ $((n % 8)) = 0 ]; then find . -type f | shuf -n 7 | xargs rm -f || break; fi
	done 2>/dev/null
}
if [ "${1:-}" = --churn ]; then
	churn "$2"
	exit 0
fi

arguments=("$@") rounds=3
if [ "${1:-}" = -r ]; then rounds=$2; shift 2; fi
names=("$@")
[ $# -gt 0 ] || read -ra names -d '' < <(cases | cut -d' ' -f1) || true
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "kill.sh: CI must run as root" >&2; exit 1; }
	echo "kill.sh: skipped: loop devices and mounts need root"
	exit 0
fi
# In a mount namespace of its own: others that are made meanwhile would keep a copy of each mount, so that umount
# does not end it; and no mount outlives this one.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "${arguments[@]}"
seed=${SEED:-$RANDOM}
RANDOM=$seed

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-kill.XXXXXX")
mkdir "$W/mnt" "$W/vol"
server='' loop='' writers=()

# bounded COMMAND... - nothing here takes long, unless it hangs
bounded() { timeout -k 5 60 "$@"; }

# mounted DIRECTORY - without looking into it: what it shows may be dead
mounted() { grep -qF " $1 " /proc/self/mountinfo; }

# lost - after the daemon: unmount what it served; it answers no more, and the kernel knows
lost() {
	if mounted "$W/mnt"; then bounded umount "$W/mnt" || bounded umount -l "$W/mnt"; fi
	if [ -n "$loop" ]; then bounded losetup -d "$loop" || true; fi
	loop=''
	if mounted "$W/vol"; then bounded umount -l "$W/vol"; fi
}

cleanup() {
	# The daemon first: without it everything that waits for it ends.
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	[ ${#writers[@]} = 0 ] || kill "${writers[@]}" 2>/dev/null || true
	wait 2>/dev/null
	lost || true
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf --one-file-system "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
	echo "kill.sh: $name, round $n: $*; SEED=$seed" >&2
	tail -n 30 "$W/log" >&2
	exit 1
}

chance() { [ $((RANDOM % $1)) = 0 ]; }
pause() { sleep "$((RANDOM % $1))e-3"; }
try_md() { bounded "$ashlar" md "$@" --control "$W/control" >>"$W/log" 2>&1; }
md() { try_md "$@" || fail "md $*"; }
attribute() { bounded "$ashlar" get --control "$W/control" "sys/block/md0/md/$1"; }

# launch MEMBER... [OPTION...] - start ashlar over the members, and wait for the array
launch() {
	"$ashlar" serve "$@" --mount "$W/vol" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	until_it $server timeout 5 test -e "$W/vol/dev/md0" || fail "ashlar serve ended, or serves no array"
}

# serve - and attach a loop device; direct I/O every other time
serve() {
	local direct=on
	launch "$W"/m?.img
	chance 2 || direct=off
	loop=$(bounded losetup -f --show --direct-io=$direct "$W/vol/dev/md0") || fail "no loop device"
}

mount_fs() { bounded mount -o discard "$loop" "$W/mnt" || fail "the file system cannot be mounted"; }

# settled - unmounted, the file system has nothing to repair
settled() {
	bounded umount "$W/mnt" || fail "the file system cannot be unmounted"
	case $fs in
	ext4) bounded e2fsck -fn "$loop" >"$W/fsck" 2>&1 ;;
	xfs) bounded xfs_repair -n "$loop" >"$W/fsck" 2>&1 ;;
	esac || { cat "$W/fsck"; fail "the file system is damaged"; }
}

stamps() { timeout 120 "$here/stamps.py" "$1" --seed "$name" --state "$W/stamps" --log "$W/flushed" "$W/mnt/stamps"; }

# synchronous OPTION... - fio's job whose state is kept
synchronous() {
	timeout 120 fio --aux-path="$W/fio" --verify=crc32c --direct=1 --ioengine=psync --name=synchronous \
		--filename="$W/mnt/synchronous" --size=32M --rw=randwrite --bs=4k --randseed="$(cat "$W/fio/seed")" "$@"
}

verify() {
	stamps verify >"$W/out" || { cat "$W/out"; fail "what was flushed is lost"; }
	cat "$W/out" >>"$W/stamped"
	if [ -e "$W/fio/seed" ]; then
		synchronous --verify_only --verify_state_load=1 --verify_state_save=0 >"$W/out" 2>&1 || { cat "$W/out"; fail "what fio had written is lost"; }
		sed -n 's/.*issued rwts: total=\([0-9]*\),.*/\1/p' "$W/out" >>"$W/completed"
	fi
	(
		cd "$W/mnt/churn"
		rm -f new
		ls >"$W/named"
		sed 's/.*/&  &/' "$W/named" | sha256sum --quiet -c 2>&1 || [ ! -s "$W/named" ]
	) >"$W/out" || { cat "$W/out"; fail "a file changed"; }
	wc -l <"$W/named" >>"$W/files"
}

# write_on - start everything that writes, and return when it does
write_on() {
	local _
	rm -rf "$W/fio"
	mkdir "$W/fio"
	echo "$RANDOM$n" >"$W/fio/seed"
	: >"$W/flushed"
	stamps write >"$W/stamps.out" 2>&1 &
	writers+=($!)
	# From there, because fio puts the output of the command here. A job that has not begun leaves no state.
	cd "$W/fio"
	synchronous --do_verify=0 --sync=dsync --verify_state_save=1 --exec_prerun="touch $W/fio/begun" \
		--name=back --filename="$W/mnt/back" --size=16M --rw=randwrite --bsrange=4k-64k --sync=none \
		--do_verify=1 --verify_backlog=64 --verify_state_save=0 --time_based --runtime=100 >"$W/fio.out" 2>&1 &
	writers+=($!)
	cd "$OLDPWD"
	timeout 120 "$0" --churn "$W/mnt/churn" &
	writers+=($!)
	until_done 90 "a flush" [ -s "$W/flushed" ]
	until_done 90 "fio's first file" [ -e "$W/fio/begun" ]
}

# busy - refused, and rightly so: the array was healing
busy() { tail -n 1 "$W/log" | grep -qE "under way already|resource busy" || fail "that must not be refused"; }

has_parity() { [[ $options == --level=[456]* ]]; }

# trouble - in most rounds a member fails and perhaps returns, or a check begins
trouble() {
	if has_parity && [ -z "$gone" ]; then
		! chance 3 || { try_md action md0 check --no-wait || busy; }
		! chance 3 || return 0
		"$ashlar" set --control "$W/control" sys/block/md0/md/sync_speed_min 200000 >>"$W/log" || fail "sync_speed_min"
		heal
	fi
	if [ -n "$gone" ]; then
		# What it lacks is known by a bitmap alone.
		case $bitmap in
		ppl) md add md0 "$gone" ;;
		*) md re-add md0 "$gone" ;;
		esac
		gone=''
		returned=$((returned + 1))
		return
	fi
	local victims=("$W"/m?.img)
	local victim=${victims[RANDOM % ${#victims[@]}]}
	case $((RANDOM % 4)) in
	0) ;;
	1) try_md action md0 check --no-wait || busy ;;
	*)
		try_md fail md0 "$victim" || { busy && return; }
		failed=$((failed + 1))
		gone=$victim
		if chance 2 || has_parity; then
			pause 500
			md remove md0 "$victim"
			# With its partial parity log the array starts again without it.
			if [ "$bitmap" = ppl ] && chance 2; then return; fi
			pause 500
			trouble
			! has_parity || heal
		fi
		;;
	esac
}

# crash - the daemon dies, while all writers write
crash() {
	local w
	for w in "${writers[@]}"; do
		kill -0 "$w" 2>/dev/null || { cat "$W/stamps.out" "$W/fio.out"; fail "a writer ended before the daemon"; }
	done
	kill -0 $server 2>/dev/null || fail "ashlar serve ended"
	kill -KILL $server
	# The shell announces who was killed: not here.
	{ wait $server || true; } 2>/dev/null
	server=''
	wait "${writers[0]}" || { cat "$W/stamps.out"; fail "stamps.py write"; }
	# fio ends with the error that its disk is gone; what it read back must have been right.
	wait "${writers[1]}" || true
	! grep -E 'verify: |verify failed|bad ' "$W/fio.out" || fail "fio read something else than it had written"
	wait "${writers[2]}" || true
	writers=()
	lost || fail "what a dead daemon served cannot be unmounted"
}

# heal - until all members are in sync
heal() {
	[ -z "$gone" ] || trouble
	until_done 180 "the end of a resync or a recovery" synced
}
synced() { [ "$(attribute sync_action) $(attribute resync_start) $(attribute degraded)" = 'idle none 0' ]; }

# healed - the members' copies are the same
healed() {
	heal
	md action md0 check
	[ "$(attribute mismatch_cnt)" = 0 ] || fail "$(attribute mismatch_cnt) sectors differ"
	mount_fs
	verify
	settled
	bounded losetup -d "$loop"
	loop=''
	udevadm settle 2>/dev/null || sleep 0.1
	kill -TERM $server
	bounded tail --pid=$server -f /dev/null || fail "ashlar serve does not end"
	wait $server || fail "ashlar serve ended with $?"
	server=''
	if has_parity; then
		without_each
	else
		[ "$bitmap" = lockless ] || bounded python3 "$here/copies.py" "$W"/m?.img >>"$W/log" || fail "the members' copies"
	fi
}

# contents MEMBER... - a checksum of the array that these members make
contents() {
	launch "$@" --read-only --run
	sum=$(bounded sha256sum "$W/vol/dev/md0") || fail "the array cannot be read"
	kill -TERM $server
	wait $server || fail "ashlar serve ended with $?"
	server=''
}

# without_each - without each of its members the array is the same
without_each() {
	local member other others whole sum
	contents "$W"/m?.img
	whole=$sum
	for member in "$W"/m?.img; do
		others=()
		for other in "$W"/m?.img; do [ "$other" = "$member" ] || others+=("$other"); done
		contents "${others[@]}"
		[ "$sum" = "$whole" ] || fail "without ${member##*/} the array differs"
	done
}

started() { grep -c "INFO $1 array=\"md0\"" "$W/log" || true; }
total() { awk '{ sum += $1 } END { print sum + 0 }' "$1"; }

for name in "${names[@]}"; do
	read -r _ fs bitmap size members options < <(cases | grep "^$name ") || { echo "kill.sh: no case $name" >&2; exit 2; }
	begin=$SECONDS n=0 gone='' failed=0 returned=0
	rm -rf "$W"/m?.img "$W/fio" "$W/stamps" "$W/stamped" "$W/completed" "$W/files"
	: >"$W/log" && : >"$W/flushed" && : >"$W/completed"
	for ((i = 0; i < members; i++)); do truncate -s "$size" "$W/m$i.img"; done
	case $bitmap in
	ppl) options+=' --consistency-policy=ppl' ;;
	*) options+=" --bitmap=$bitmap --bitmap-chunk=1M" ;;
	esac
	# shellcheck disable=SC2086 # several options
	"$ashlar" md create $options --raid-devices="$members" "$W"/m?.img >>"$W/log" 2>&1 ||
		fail "md create"
	serve
	"mkfs.$fs" -q "$loop" >>"$W/log" || fail "mkfs.$fs"
	mount_fs
	truncate -s 8M "$W/mnt/stamps"
	mkdir "$W/mnt/churn"
	sync -f "$W/mnt"
	for ((n = 1; n <= rounds; n++)); do
		if [ $n -gt 1 ]; then
			serve
			mount_fs
			verify
			settled
			mount_fs
			case $((RANDOM % 3)) in
			0) heal ;;
			1) "$ashlar" set --control "$W/control" sys/block/md0/md/sync_speed_max 20000 >>"$W/log" || fail "sync_speed_max" ;;
			2) ;; # as fast as it can, under load
			esac
		fi
		write_on
		pause 700
		trouble
		pause 700
		crash
	done
	n=end
	serve
	mount_fs
	verify
	settled
	healed
	printf '%-8s %s, %s: killed %d times, %d s; verified %d flushed writes, %d synchronous ones, %d files; ' "$name" \
		"$fs" "$bitmap" "$rounds" $((SECONDS - begin)) "$(total "$W/stamped")" "$(total "$W/completed")" "$(total "$W/files")"
	printf '%d resyncs, %d recoveries, members failed %d and returned %d times\n' \
		"$(started resync)" "$(started recovery)" $failed $returned
done
