#!/bin/bash
# zvol.sh - the kernel's OpenZFS and ashlar agree about pools, their volumes, and what was flushed to them.
#
# Each case is a pool of its own. Both sides do the same to it (zvol-guest.sh, zvol-ashlar.sh), one after the other: make it
# with volumes of many kinds, write them, verify what is on them, die in the middle of writing, replay the log. After each
# step the host's zdb reads every block of the pool, verifies its checksum, and finds that nothing leaked.
#
#   A-made-SHAPE   A makes the pool; the other verifies every volume, a snapshot and a clone, and writes all of them; A
#                  verifies that
#   A-dies-Q       A dies while it writes what it flushes again and again; the other replays the log: nothing flushed is
#                  lost. Then the other way round. ROUNDS times
#   A-fio-Q        fio writes at random and verifies, over A; the other reads the same
#   A-datasets     A resizes, snapshots, clones, promotes, renames and rolls back; the other sees that bit for bit and undoes it
#   A-properties-Q A sets all properties; the other sees the same values, sources and limits, and inherits them again
#   ashlar-devices    ashlar in the guest and the kernel change one pool on block devices: create, add, attach, replace, detach, labelclear
#   ashlar-leaves-Q   volumes are suspended, and the pool exported, while they are written
#   A-segments-Q   requests of many small unaligned segments, on blocks of 16 KiB, over A; the other reads the same
#   A-ext4-Q, A-lvm-Q, A-thin-Q   a file system, LVM with a snapshot, a thin pool on a volume over A; the other continues
#   ashlar-2.1-*   the same with OpenZFS 2.1 in ashlar, where all others have the release that is installed
# where A is kernel or ashlar, Q whether requests are merged (q1) or not (q0). The kernel makes the pools of all cases that
# begin with one of its own first, up to 16 disks in one boot.
#
# usage: zvol.sh [--kernel-only] [--list]
#   --kernel-only   the kernel does ashlar's part, too: shows that the suite itself is right, without ashlar
# environment
#   ALL=1           every case instead of a selection
#   ONLY=REGEX      only the cases whose name matches (of all)
#   ASHLAR=FILE     the program to test, default target/debug/ashlar
#   ROUNDS=N        how often each side dies, default 1
#   JOBS=N          cases at a time, default: one per processor
#   KEEP=1          keep the disks, and what was said
#   TIMES=1         say how long each step takes
#
# Needs root (QEMU's virtiofsd does). Debian packages: scripts/setup test. The first time it builds OpenZFS for the guest's
# kernel (tests/oracle/build-zfs).
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
oracle=$root/tests/oracle

# name, what is done, who begins, shape or layers, queue, how many disks; a + for those of the selection
cases() {
	local side queue shape disks
	for side in kernel ashlar; do
		while read -r shape disks; do
			case $side:$shape in
			ashlar:log | ashlar:partition) continue ;; # it continues with those of the kernel
			esac
			echo "$side-made-$shape exchange $side $shape 1 $disks $(selected "$side:$shape" kernel:log ashlar:raidz)"
		done <<-END
			stripe 2
			mirror 2
			raidz 3
			raidz2 4
			log 2
			partition 1
		END
		echo "$side-datasets datasets $side stripe 1 1 $(selected $side ashlar)"
		for queue in 0 1; do
			echo "$side-properties-q$queue properties $side stripe $queue 1 $(selected $side:$queue ashlar:1)"
			echo "$side-dies-q$queue dies $side stripe $queue 1 $(selected $side:$queue kernel:0 ashlar:1)"
			echo "$side-fio-q$queue fio $side stripe $queue 1 $(selected $side:$queue ashlar:1)"
			echo "$side-segments-q$queue segments $side mirror $queue 2 $(selected $side:$queue ashlar:0 ashlar:1)"
			[ $side = kernel ] || echo "$side-leaves-q$queue leaves $side stripe $queue 1 $(selected $side:$queue ashlar:1)"
			for shape in ext4 lvm thin; do
				echo "$side-$shape-q$queue layers $side $shape $queue 1 $(selected $side:$shape:$queue ashlar:ext4:1 ashlar:lvm:1 ashlar:thin:1)"
			done
		done
	done
	echo "ashlar-devices devices ashlar stripe 1 6 +"
	# Not those that the kernel makes: 2.1 does not know what they are made with.
	echo "ashlar-2.1-made-mirror exchange ashlar mirror 1 2 -"
	echo "ashlar-2.1-dies-q1 dies ashlar stripe 1 1 +"
}
selected() {
	local which=$1
	shift
	case " $* " in *" $which "*) echo + ;; *) echo - ;; esac
}

# Of the volumes that stamps are written to, the first gets a snapshot and a clone.
volumes() {
	cat <<-'END'
		v16k 8M 16k compression=lz4
		v512 1M 512 compression=off
		v8k 4M 8k checksum=sha256 compression=off
		v64k 4M 64k compression=zstd logbias=throughput copies=2
		v128k 4M 128k primarycache=metadata
		v1m 4M 1m sparse compression=off sync=always
	END
}
# What each of the other procedures writes to. crash2 is the only one that a kernel before 2.3.5 keeps its promises to
# with its queue on: it ignores flushes.
others() {
	case $1 in
	dies) cat <<-'END' ;;
		crash0 4M 8k compression=off
		crash1 4M 128k compression=off logbias=throughput
		crash2 4M 16k compression=lz4 sync=always
	END
	# By its volmode it is served as it is, whatever is on it.
	layers) echo layers 128M 8k sparse compression=lz4 volmode=dev ;;
	fio | leaves) echo scratch 16M 8k compression=lz4 ;;
	properties) printf '%s\n' 'scratch8k 4M 8k' 'scratch128k 4M 128k' ;;
	segments) echo scratch 16M 16k compression=off ;;
	esac
}

# case_is NAME - sets the variables that a case consists of
case_is() {
	WORK=$SUITE/$1 shared=$SUITE/$1/shared
	read -r name procedure first what queue count _ < <(cases | awk -v name="$1" '$1 == name')
	second=ashlar
	[ "$first" = kernel ] || second=kernel
	if [ "$KERNEL_ONLY" ]; then first=kernel second=kernel; fi
	disks=()
	for ((i = 0; i < count; i++)); do disks+=("$WORK/disks/$i"); done
}
# prepare - the disks and the list of volumes
prepare() {
	mkdir -p "$WORK/disks" "$shared" || exit 1
	truncate -s 384M "${disks[@]}"
	{
		[ "$procedure" != exchange ] || volumes
		[ "$procedure" = exchange ] || volumes | head -n 2
		others "$procedure"
	} >"$shared/volumes"
}
kernel_makes_it() {
	case $procedure in
	fio | segments | layers) ;;
	*) [ "$first" = kernel ] ;;
	esac
}
# kernel_makes NAME... - the pools of these cases, in as few boots as their disks fit into; $shared/made says how it went
kernel_makes() {
	local list=() batch=() line shape count_of_disks=0
	boot() {
		[ ${#batch[@]} != 0 ] || return 0
		local begun=$SECONDS
		printf '%s\n' "${batch[@]}" >"$SUITE/pools"
		"$oracle/qemu-run" --timeout 900 --mem 1536M --log "$SUITE/klog" --rw "$SUITE" "${list[@]}" "$here/zvol-guest.sh" \
			pools "$SUITE" >"$SUITE/guest" 2>&1 || cat "$SUITE/guest"
		[ ! "${TIMES:-}" ] || echo "the kernel makes ${#batch[@]} pools: $((SECONDS - begun)) s"
		list=() batch=() count_of_disks=0
	}
	for line in "$@"; do
		case_is "$line"
		kernel_makes_it || continue
		[ $((count_of_disks + count)) -le 16 ] || boot
		shape=$what
		[ "$procedure" != layers ] || shape=stripe
		batch+=("$name $queue $shape $count_of_disks $count")
		for disk in "${disks[@]}"; do list+=(--disk "$disk"); done
		count_of_disks=$((count_of_disks + count))
	done
	boot
}

# ------------------------------------------------------------------ one case --
# This runs as `zvol.sh --case NAME` with SUITE set, so that xargs can run several.

fail() {
	echo "FAIL $*"
	exit 1
}
# step WHAT COMMAND...
step() {
	local begun=$SECONDS
	"${@:2}" || fail "$1"
	[ ! "${TIMES:-}" ] || echo "$1: $((SECONDS - begun)) s"
}

# guest VERB [NAME=VALUE]... - the kernel's part
guest() {
	local list=() disk
	for disk in "${disks[@]}"; do list+=(--disk "$disk"); done
	"$oracle/qemu-run" --timeout 400 --mem 1536M --log "$WORK/klog" --rw "$shared" "${list[@]}" "$here/zvol-guest.sh" \
		"$1" "$shared" "QUEUE=$queue" "${@:2}" >"$WORK/guest" 2>&1
}
kernel() {
	local status=0
	case $1 in
	make) # done before the case began
		cp "$shared/made" "$WORK/guest" && tail -n 1 "$WORK/guest" | grep -qx pass && return
		;;
	crash) # with a long time between transaction groups, so that the log has records
		rm -f "$shared/crashed"
		guest "$@" TIMEOUT=600 || status=$?
		[ $status = 123 ] && [ -e "$shared/crashed" ] && return
		;;
	*) guest "$@" && tail -n 1 "$WORK/guest" | grep -qx pass && return ;;
	esac
	cat "$WORK/guest"
	return 1
}

# clean [crashed] - zdb finds every block, and each of them once; the pool is exported, unless a crash left it
# shellcheck disable=SC2120 # step passes it on
clean() {
	local where=$WORK/disks
	if [ "$what" = partition ]; then
		where=$WORK/partition
		mkdir -p "$where"
		dd if="${disks[0]}" of="$where/0" bs=1M skip=1 conv=sparse status=none
	fi
	if ! "$oracle/zdb" -e -bcc -p "$where" tank >"$WORK/zdb" 2>"$WORK/zdb.log"; then
		tail -n 20 "$WORK/zdb" "$WORK/zdb.log"
		return 1
	fi
	grep -q 'No leaks' "$WORK/zdb" || { cat "$WORK/zdb"; return 1; }
	[ "${1:-}" = crashed ] || zdb -l "$where/0" | grep -qx ' *state: 1' || { echo "the pool is not exported"; return 1; }
}
# logged VOLUME... - at least one of them has records to replay: a transaction group may just have ended
logged() {
	local volume records all=0
	for volume in "$@"; do
		records=$("$oracle/zdb" -e -iv -p "$WORK/disks" "tank/$volume" 2>>"$WORK/zdb.log" | sed -n 's/^\t*Total *//p')
		[ ! "${TIMES:-}" ] || echo "the log of $volume has ${records:-no} records"
		all=$((all + ${records:-0}))
	done
	[ $all -gt 0 ] || { echo "there is nothing to replay"; return 1; }
}

exchange() {
	step "$first makes" "$first" make "SHAPE=$what"
	step "zdb" clean
	step "$second verifies" "$second" verify
	step "$second writes" "$second" write
	step "zdb" clean
	step "$first verifies" "$first" verify
}
# dies_and_replays ONE OTHER
dies_and_replays() {
	local names=(crash2) tries=3
	[ "$1:$queue" = kernel:1 ] || names+=(crash0 crash1)
	step "$1 dies" "$1" crash "CRASH=${names[*]}"
	# A transaction group may just have ended: nothing may be lost then either, and it dies once more.
	until logged "${names[@]}"; do
		[ $((tries -= 1)) -gt 0 ] || fail "log"
		step "$2 finds all without a log" "$2" replay "CRASH=${names[*]}" FORCE=1
		step "$1 dies again" "$1" crash "CRASH=${names[*]}"
	done
	step "zdb before the log is replayed" clean crashed
	step "$2 replays" "$2" replay "CRASH=${names[*]}" FORCE=1
	step "zdb" clean
}
dies() {
	local _
	step "$first makes" "$first" make
	for _ in $(seq "${ROUNDS:-1}"); do
		dies_and_replays "$first" "$second"
		dies_and_replays "$second" "$first"
	done
}
written() {
	step "kernel makes" kernel make
	step "$first writes" "$first" "$1"
	step "zdb" clean
	step "$second verifies" "$second" verify
}
datasets() {
	step "$first makes" "$first" make
	step "$first changes" "$first" change
	step "zdb" clean
	step "$second undoes" "$second" undo
	step "zdb" clean
	step "$first agrees" "$first" settle
}
properties() {
	step "$first makes" "$first" make
	step "$first configures" "$first" configure
	step "$second reconfigures" "$second" reconfigure
	step "zdb" clean
	step "$first compares" "$first" compare
}
on_devices() {
	local list=() disk
	for disk in "${disks[@]}"; do list+=(--disk "$disk"); done
	"$oracle/qemu-run" --timeout 400 --mem 1536M --log "$WORK/klog" "${list[@]}" "$here/zpool-devices-guest.sh" "$ASHLAR" >"$WORK/guest" 2>&1
	tail -n 1 "$WORK/guest" | grep -qx pass && return
	cat "$WORK/guest"
	return 1
}
devices() { step "ashlar and the kernel, in turn" on_devices; }
leaves() {
	step "ashlar makes" ashlar make
	step "ashlar leaves" ashlar leaves
	step "zdb" clean
	step "kernel verifies" kernel verify
}
fio() { written fio; }
segments() { written segments; }
layers() {
	tar -C /usr/include -cf "$shared/source.tar" linux "$(gcc -print-multiarch)"
	step "kernel makes" kernel make
	step "$what over $first" "$first" layers "LAYERS=$what"
	step "zdb" clean
	step "$what over $second" "$second" layers LAYERS=again
	step "zdb" clean
}

cleanup() {
	ashlar_cleanup
	[ "${KEEP:-}" ] || rm -r --one-file-system "$WORK"
}

if [ "${1:-}" = --case ]; then
	case_is "$2"
	# shellcheck source=tests/interop/zvol-ashlar.sh
	. "$here/zvol-ashlar.sh"
	trap cleanup EXIT
	trap 'exit 130' INT TERM HUP
	# shellcheck disable=SC2034 # zvol-ashlar.sh runs the program
	program=("$ASHLAR")
	case $name in
	ashlar-2.1-*)
		library=$("$oracle/get-libzpool" 5) || exit 1
		# For ashlar alone: the host's zdb has another release's libraries of the same names.
		# shellcheck disable=SC2034
		program=(env "LD_LIBRARY_PATH=$library" "ASHLAR_LIBZPOOL=$library/libzpool.so.5" "$ASHLAR")
		;;
	esac
	started=$SECONDS
	if ("$procedure") >"$WORK/output" 2>&1; then verdict=pass; else verdict=FAIL; fi
	{
		printf '%s %-22s %d s\n' $verdict "$2" $((SECONDS - started))
		sed 's/^/     /' "$WORK/output"
	} | tee -a "$SUITE/verdicts"
	exit 0
fi

# --------------------------------------------------------------------- suite --
KERNEL_ONLY='' ASHLAR=${ASHLAR:-}
case ${1:-} in
--kernel-only) KERNEL_ONLY=1 ;;
--list)
	cases | awk '{ print $NF, $1 }'
	exit
	;;
'')
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	needs "$ashlar"
	ASHLAR=$(realpath "$ashlar")
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
export KERNEL_ONLY ASHLAR
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "zvol.sh: CI must run as root" >&2; exit 1; }
	echo "zvol.sh: skipped: QEMU's virtiofsd needs root"
	exit 0
fi
# In a mount namespace of its own: no mount outlives the suite.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "$@"

SUITE=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-zvol.XXXXXX") || exit 1
export SUITE
trap '[ "${KEEP:-}" ] && echo "kept: $SUITE" || rm -rf --one-file-system "$SUITE"' EXIT
trap 'exit 130' INT TERM HUP
mapfile -t names < <(cases | grep "^${KERNEL_ONLY:+kernel}" | { if [ "${ALL:-}${ONLY:-}" ]; then cat; else grep ' +$'; fi; } | cut -d' ' -f1 | grep -E "${ONLY:-}")
[ ${#names[@]} != 0 ] || { echo "zvol.sh: no case matches" >&2; exit 1; }

for tool in stamp.py crash.py zvol_segments.py; do
	"$here/$tool" selftest >"$SUITE/selftest" 2>&1 || { cat "$SUITE/selftest"; exit 1; }
done
"$oracle/build-zfs" >"$SUITE/build" 2>&1 || { tail -n 20 "$SUITE/build"; exit 1; }
echo "the suite's own tools, and the kernel's module: $SECONDS s"
: >"$SUITE/verdicts"
for name in "${names[@]}"; do
	case_is "$name"
	prepare
done
kernel_makes "${names[@]}"
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-$(nproc)}" -I NAME "$0" --case NAME
passed=$(grep -c '^pass ' "$SUITE/verdicts")
echo "$passed of ${#names[@]} cases, $SECONDS s"
[ "$passed" = ${#names[@]} ]
