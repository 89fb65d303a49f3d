# shellcheck shell=bash
# zvol-ashlar.sh - ashlar's half of zvol.sh, which sources it: the same verbs as those of zvol-guest.sh.
#
# Volumes are written and read over NBD, by fio through the mount; what the kernel is to put on them it does in UML. Snapshots
# and clones are made while the volumes are served.
# shellcheck disable=SC2154 # what the suite defines

python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to
socket=$WORK/nbd control=$WORK/control mount=$WORK/mount

quiet() {
	"$@" >"$WORK/said" 2>&1 || {
		cat "$WORK/said"
		fail "$*"
	}
}
export_of() { echo "nbd:$socket:zvol/tank/$1"; }
target() { export_of "$1"; }
contents() { nbdcopy "nbd+unix:///zvol/tank/$1?socket=$socket" -; }
sys=$mount/sys
sys_of() {
	local name
	name=$(grep -lx "tank/$1" "$sys"/block/zd*/zvol/name) || fail "no device for $1"
	echo "${name%/zvol/name}"
}
zvol() { "${program[@]}" zvol "$1" --control "$control" "${@:2}"; }
zpool() { "${program[@]}" zpool "$1" --control "$control" "${@:2}"; }
# shellcheck source=tests/until.sh
. "$root/tests/until.sh"
# shellcheck source=tests/interop/zvol-both.sh
. "$here/zvol-both.sh"
# shellcheck source=tests/interop/zvol-datasets.sh
. "$here/zvol-datasets.sh"

# family - the daemon and all that it has started, also by its cleanup helper: a worker in a sandbox is that one's child
family() {
	local found next
	found=$(cat "$WORK/pid") || return
	next=$found
	while next=$(ps -o pid= --ppid "$(xargs <<<"$next" | tr ' ' ,)"); do found+=" $(xargs <<<"$next")"; done
	echo "$found"
}
# serve [OPTION]...
serve() {
	local outside=()
	# Workers in a sandbox, and outside.
	if [ "$queue" = 1 ]; then outside=(--no-sandbox); fi
	mkdir -p "$mount"
	: >"$WORK/log" # or the last one's is looked at, if the new one is slow
	"${program[@]}" serve "${outside[@]}" "${disks[@]}" --nbd "unix:$socket" --mount "$mount" --control "$control" \
		--set "sys/module/zfs/parameters/zvol_use_blk_mq=$queue" "$@" >"$WORK/log" 2>&1 </dev/null &
	echo $! >"$WORK/pid"
	! until_it "$(cat "$WORK/pid")" grep -qx ready "$WORK/log" || return 0
	cat "$WORK/log"
	fail "the daemon did not start"
}
# gone PID - nothing of a process is left. It need not be a child of this shell.
gone() {
	local _
	for _ in $(seq 600); do
		kill -0 "$1" 2>/dev/null || return 0
		sleep 0.05
	done
	fail "process $1 did not end"
}
# ends STATUS - the daemon ends
ends() {
	local status=0
	{ wait "$(cat "$WORK/pid")"; } 2>/dev/null || status=$?
	rm -f "$WORK/pid" "$socket" "$control"
	[ $status = "$1" ] && return
	cat "$WORK/log"
	fail "the daemon ended with $status"
}
# leave - nothing is wrong with the pool; it is exported
leave() {
	quiet "${program[@]}" zpool scrub --control "$control" -w tank
	quiet "${program[@]}" zpool status --control "$control" tank
	if ! grep -q 'errors: No known data errors' "$WORK/said" || ! grep -q ' repaired 0B .* with 0 errors' "$WORK/said"; then
		cat "$WORK/said"
		fail "the pool is not healthy"
	fi
	kill -TERM "$(cat "$WORK/pid")"
	ends 0
}

ashlar_make() {
	local vdevs=("${disks[@]}") list name size block properties property options
	list=$(IFS=, && echo "${disks[*]}")
	[ "$SHAPE" = stripe ] || vdevs=("$SHAPE" "${disks[@]}")
	quiet "${program[@]}" zpool create -o ashift=12 -o comment=stamps -o listsnapshots=on tank "${vdevs[@]}"
	while read -r name size block properties; do
		options=()
		for property in $properties; do
			if [ "$property" = sparse ]; then options+=(-s); else options+=(-o "$property"); fi
		done
		quiet "${program[@]}" zvol create -d "$list" -V "$size" -b "$block" "${options[@]}" "tank/$name"
	done <"$shared/volumes"
	serve
	fill
	leave
}

ashlar_fio() {
	serve
	quiet timeout 300 fio --name=verify --verify_state_save=0 --filename="$mount/dev/zvol/tank/scratch" --bsrange=512-128k --blockalign=512 --rw=randwrite \
		--ioengine=libaio --iodepth=16 --direct=1 --fdatasync=32 --size=12M --verify=crc32c --verify_backlog=64
	echo "$(sha256sum <"$mount/dev/zvol/tank/scratch" | cut -d' ' -f1) scratch" >"$shared/sums"
	leave
}

ashlar_segments() {
	serve
	timeout 300 $python "$here/zvol_segments.py" write --seed "$queue" "$(export_of scratch)" >"$WORK/sum" || fail "segments"
	echo "$(cat "$WORK/sum") scratch" >"$shared/sums"
	leave
}

ashlar_crash() {
	local name _ writers=() pids pid writer
	# With a long time between transaction groups, so that the log has records.
	serve --set sys/module/zfs/parameters/zfs_txg_timeout=600
	for name in $CRASH; do
		: >"$shared/$name.log"
		echo --discards >"$shared/$name.discards"
		timeout 120 $python "$here/crash.py" write --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" --discards \
			"$(export_of "$name")" >>"$WORK/writers" 2>&1 &
		writers+=($!)
	done
	for name in $CRASH; do
		until_it "$(cat "$WORK/pid")" [ -s "$shared/$name.log" ] || { cat "$WORK/log" "$WORK/writers"; fail "nothing was flushed to $name"; }
	done
	sleep "$((RANDOM % 1500 + 500))e-3"
	# The daemon and the process that has the pool, at once: neither puts in order what the other leaves.
	pids=$(family) && [ "$(wc -w <<<"$pids")" -gt 1 ] || fail "the daemon went away"
	# shellcheck disable=SC2086 # numbers
	kill -KILL $pids
	ends 137
	for pid in $pids; do gone "$pid"; done
	umount -l "$mount" 2>/dev/null
	for writer in "${writers[@]}"; do wait "$writer" || { cat "$WORK/writers"; fail "a writer ended with $?"; }; done
}

ashlar_replay() {
	local name discards
	serve ${FORCE:+--force}
	for name in $CRASH; do
		read -r discards <"$shared/$name.discards"
		timeout 300 $python "$here/crash.py" verify --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" ${discards:+"$discards"} --torn \
			"$(export_of "$name")" || fail "$name"
	done
	verify
	leave
}

# leaves - a volume is resized and another rolled back while they are written, and the pool is not exported; it is when the writers
# have gone, however they went
ashlar_leaves() {
	local checked killed rounds=0 begun
	local export=("${program[@]}" zpool export --control "$control" tank)
	serve
	quiet zvol snapshot tank/v16k@now
	timeout 300 $python "$here/zvol_segments.py" write --seed "$queue" --requests 600 "$(target scratch)" >"$WORK/sum" 2>"$WORK/segments" &
	checked=$!
	# It does not close the volume until it is killed.
	command fio --thread --name=rolled-back --filename="$mount/dev/zvol/tank/v16k" --bsrange=512-128k --blockalign=512 --rw=randrw --ioengine=libaio \
		--iodepth=16 --direct=1 --fdatasync=32 --size=8M --io_size=1T --norandommap --runtime=300 >"$WORK/fio" 2>&1 &
	killed=$!
	sleep 1
	while kill -0 $checked 2>/dev/null; do
		rounds=$((rounds + 1))
		kill -0 $killed 2>/dev/null || { cat "$WORK/fio"; fail "fio has ended"; }
		quiet zvol rollback tank/v16k@now
		quiet zvol set volsize=$((16 + rounds % 3))M tank/scratch
		quiet zvol snapshot tank/scratch@now
		quiet zvol destroy tank/scratch@now
		if "${export[@]}" >"$WORK/said" 2>&1 || ! grep -q 'pool is busy' "$WORK/said"; then
			cat "$WORK/said"
			fail "the pool should be busy"
		fi
	done
	wait $checked || { cat "$WORK/segments"; fail "the writer of scratch ended with $?"; }
	[ $rounds -ge 3 ] || fail "only $rounds rounds while it was written"
	kill -KILL $killed
	wait $killed 2>/dev/null
	quiet zvol set volsize=16M tank/scratch
	echo "$(cat "$WORK/sum") scratch" >"$shared/sums"
	quiet "${export[@]}"
	quiet "${program[@]}" status --control "$control"
	kill -TERM "$(cat "$WORK/pid")"
	ends 0
	clean || fail "zdb"

	# And when the daemon is to end while a client writes.
	serve
	while timeout 60 $python "$here/stamp.py" write --seed v16k --phase 3 "$(target v16k)"; do :; done >"$WORK/writers" 2>&1 &
	killed=$!
	sleep 2
	kill -0 $killed || { cat "$WORK/writers"; fail "the writer did not begin"; }
	begun=$SECONDS
	kill -TERM "$(cat "$WORK/pid")"
	ends 0
	[ $((SECONDS - begun)) -lt 20 ] || fail "it took the daemon $((SECONDS - begun)) s to end"
	wait $killed
	# Nobody knows what of it was written.
	sed -i '/^v16k /d' "$shared/contents"
}

ashlar_layers() {
	serve
	"$oracle/uml-run" --timeout 240 --mem 640M --log "$WORK/klog" --rw "$shared" --forward "10809=unix:$socket" \
		"$here/zvol-layers-guest.sh" "$LAYERS" "$shared" nbd:zvol/tank/layers || fail "$LAYERS"
	leave
}

# ashlar VERB [NAME=VALUE]...
ashlar() {
	local SHAPE=stripe CRASH='' LAYERS='' FORCE='' setting
	for setting in "${@:2}"; do
		case $setting in
		SHAPE=* | CRASH=* | LAYERS=* | FORCE=*) local "$setting" ;;
		*) fail "what is $setting" ;;
		esac
	done
	case $1 in
	verify | write | change | undo | settle | configure | reconfigure | compare)
		serve
		"$1"
		leave
		;;
	*) "ashlar_$1" ;;
	esac
}
ashlar_cleanup() {
	# shellcheck disable=SC2046 # numbers
	[ ! -e "$WORK/pid" ] || kill -KILL $(family) 2>/dev/null
	# Without looking into it: what it shows may be dead.
	! grep -qF " $mount " /proc/self/mountinfo || umount -l "$mount"
}
