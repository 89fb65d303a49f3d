# shellcheck shell=bash
# array-on-loop.sh - an array of $W/m?.img that ashlar serves, with a loop device on it; sourced, with $here, $ashlar, $W and fail, which ends the suite
server='' loop='' turn=0

# serve [TRIES] - start ashlar over the members, wait for md0 (TRIES times 50 ms, default 200) and attach a loop device; direct I/O every other time
serve() {
	"$ashlar" serve "$W"/m?.img --mount "$W/vol" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	for _ in $(seq "${1:-200}"); do
		[ ! -e "$W/vol/dev/md0" ] || break
		kill -0 $server 2>/dev/null || fail "ashlar serve ended"
		sleep 0.05
	done
	turn=$((turn + 1))
	local direct=off
	[ $((turn % 2)) = 0 ] || direct=on
	loop=$(losetup -f --show --direct-io=$direct "$W/vol/dev/md0")
}

# stop - detach, end ashlar with SIGTERM, and compare the members
stop() {
	losetup -d "$loop"
	loop=''
	udevadm settle 2>/dev/null || sleep 0.1
	kill -TERM "$server"
	wait "$server" || fail "ashlar serve ended with $?"
	server=''
	python3 "$here/copies.py" "$W"/m?.img || fail "the members' copies"
}
