# shellcheck shell=bash
# zvol-ashlar.sh - ashlar's half of zvol.sh, which sources it: the same verbs as those of zvol-guest.sh.
#
# Volumes are written and read over NBD, by fio through the mount; what the kernel is to put on them it does in UML. Snapshots
# and clones are made while the volumes are served.
# shellcheck disable=SC2154 # what the suite defines

python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to
socket=$WORK/nbd control=$WORK/control mount=$WORK/mount

# said COMMAND... - what it says is of interest if it fails
said() {
	"$@" >"$WORK/said" 2>&1 || {
		cat "$WORK/said"
		fail "$*"
	}
}
export_of() { echo "nbd:$socket:zvol/tank/$1"; }
stamps() { # VERB VOLUME SEED PHASE
	said timeout 300 $python "$here/stamp.py" "$1" --seed "$3" --phase "$4" --discards "$(export_of "$2")"
}

# serve [OPTION]...
serve() {
	local _
	mkdir -p "$mount"
	: >"$WORK/log" # or the last one's is looked at, if the new one is slow
	"${program[@]}" serve "${disks[@]}" --nbd "unix:$socket" --mount "$mount" --control "$control" \
		--set "sys/module/zfs/parameters/zvol_use_blk_mq=$queue" "$@" >"$WORK/log" 2>&1 </dev/null &
	echo $! >"$WORK/pid"
	for _ in $(seq 600); do
		if grep -qx ready "$WORK/log"; then return; fi
		kill -0 "$(cat "$WORK/pid")" 2>/dev/null || break
		sleep 0.05
	done
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
	said "${program[@]}" zpool scrub --control "$control" -w tank
	said "${program[@]}" zpool status --control "$control" tank
	if ! grep -q 'errors: No known data errors' "$WORK/said" || ! grep -q ' repaired 0B .* with 0 errors' "$WORK/said"; then
		cat "$WORK/said"
		fail "the pool is not healthy"
	fi
	kill -TERM "$(cat "$WORK/pid")"
	ends 0
}

ashlar_make() {
	local vdevs=("${disks[@]}") list name size block properties property options first='' phase
	list=$(IFS=, && echo "${disks[*]}")
	[ "$SHAPE" = stripe ] || vdevs=("$SHAPE" "${disks[@]}")
	said "${program[@]}" zpool create -o ashift=12 tank "${vdevs[@]}"
	while read -r name size block properties; do
		options=()
		for property in $properties; do
			if [ "$property" = sparse ]; then options+=(-s); else options+=(-o "$property"); fi
		done
		said "${program[@]}" zvol create -d "$list" -V "$size" -b "$block" "${options[@]}" "tank/$name"
	done <"$shared/volumes"
	serve
	while read -r name size block properties; do
		case $name in scratch | layers | crash*) continue ;; esac
		stamps write "$name" "$name" 1
		echo "$name $name 1"
		first=${first:-$name}
	done <"$shared/volumes" >"$shared/contents"
	said "${program[@]}" zvol set --control "$control" snapdev=visible "tank/$first"
	said "${program[@]}" zvol snapshot --control "$control" "tank/$first@then"
	said "${program[@]}" zvol clone --control "$control" "tank/$first@then" tank/clone
	for phase in 2 3; do stamps write clone "$first" $phase; done
	stamps write "$first" "$first" 2
	sed -i "s/^$first $first 1/$first $first 2/" "$shared/contents"
	printf '%s\n' "$first@then $first 1" "clone $first 3" >>"$shared/contents"
	leave
}

verified() {
	local name seed phase want sum
	while read -r name seed phase; do stamps verify "$name" "$seed" "$phase"; done <"$shared/contents"
	[ -e "$shared/sums" ] || return 0
	while read -r want name; do
		sum=$(nbdcopy "nbd+unix:///zvol/tank/$name?socket=$socket" - | sha256sum | cut -d' ' -f1)
		[ "$sum" = "$want" ] || fail "$name reads differently"
	done <"$shared/sums"
}
ashlar_verify() {
	serve
	verified
	leave
}

ashlar_write() {
	local name seed phase
	serve
	while read -r name seed phase; do
		case $name in
		*@*) ;;
		*)
			phase=$((phase + 1))
			stamps write "$name" "$seed" $phase
			;;
		esac
		echo "$name $seed $phase"
	done <"$shared/contents" >"$WORK/contents"
	cp "$WORK/contents" "$shared/contents"
	leave
}

ashlar_fio() {
	serve
	said timeout 300 fio --name=verify --verify_state_save=0 --filename="$mount/dev/zvol/tank/scratch" --bsrange=512-128k --blockalign=512 --rw=randwrite \
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
	# With a long time between transaction groups, so that there is something in the log.
	serve --set sys/module/zfs/parameters/zfs_txg_timeout=600
	for name in $CRASH; do
		: >"$shared/$name.log"
		timeout 120 $python "$here/crash.py" write --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" --discards \
			"$(export_of "$name")" >>"$WORK/writers" 2>&1 &
		writers+=($!)
	done
	for name in $CRASH; do
		for _ in $(seq 400); do
			[ ! -s "$shared/$name.log" ] || break
			sleep 0.05
		done
		[ -s "$shared/$name.log" ] || { cat "$WORK/log" "$WORK/writers"; fail "nothing was flushed to $name"; }
	done
	sleep "$((RANDOM % 1500 + 500))e-3"
	# The daemon and the process that has the pool, at once: neither puts in order what the other leaves.
	pids=$(cat "$WORK/pid"; ps -o pid= --ppid "$(cat "$WORK/pid")") || fail "the daemon went away"
	# shellcheck disable=SC2086 # numbers
	kill -KILL $pids
	ends 137
	for pid in $pids; do gone "$pid"; done
	umount -l "$mount" 2>/dev/null
	for writer in "${writers[@]}"; do wait "$writer" || { cat "$WORK/writers"; fail "a writer ended with $?"; }; done
}

ashlar_replay() {
	local name
	serve ${FORCE:+--force}
	for name in $CRASH; do
		timeout 300 $python "$here/crash.py" verify --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" --discards \
			"$(export_of "$name")" || fail "$name"
	done
	verified
	leave
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
	"ashlar_$1"
}
ashlar_cleanup() {
	local pid
	if [ -e "$WORK/pid" ]; then
		pid=$(cat "$WORK/pid")
		# shellcheck disable=SC2046 # numbers
		kill -KILL "$pid" $(ps -o pid= --ppid "$pid") 2>/dev/null
	fi
	# Without looking into it: what it shows may be dead.
	! grep -qF " $mount " /proc/self/mountinfo || umount -l "$mount"
}
