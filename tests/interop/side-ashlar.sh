#!/bin/bash
# side-ashlar.sh - what members.sh has ashlar do; sourced by it. The functions are those of
# side-kernel.sh, where their comments are.
#
# shellcheck disable=SC2034,SC2154 # variables are shared with members.sh

# shellcheck source=tests/until.sh
. "$here/../until.sh"
server=

begin_side() { :; }
begin_case() {
	socket=$(mktemp -u "$WORK/nbd.XXXXXX")
	target=nbd:$socket
	control=(--control "$socket.control")
	: >"$socket.log"
}

end_case() {
	local status=0
	if [ -n "$server" ]; then
		kill -KILL $server
		{ wait $server; } 2>/dev/null
		echo "the server was still there" && status=1
		server=
	fi
	[ $status != 0 ] || rm -f "$socket.log"
	return $status
}

explain_case() { sed 's/^/server: /' "$socket.log"; }

create() {
	"$ashlar" md create --homehost=any --name="$name" "$@" "${all[@]/%/.img}" >>"$socket.log"
}

start() {
	"$ashlar" serve "${@/%/.img}" --nbd "unix:$socket" "${control[@]}" >>"$socket.log" 2>&1 </dev/null &
	server=$!
	until_it $server [ -S "$socket.control" ] || true
	array=$("$ashlar" get "${control[@]}" proc/mdstat | sed -n 's/^ *\(md[0-9]*\) : active.*/\1/p')
	[ -n "$array" ] || { echo "the server did not start"; return 1; }
}

stop() {
	local status
	kill -TERM $server || return 1
	wait $server
	status=$?
	server=
	[ $status = 0 ] || { echo "the server ended with $status"; return 1; }
}

manage() { "$ashlar" md "$1" "${control[@]}" "$array" "$2.img" ${3:+"$3" "$4.img"} >>"$socket.log"; }
grow() { "$ashlar" md grow "${control[@]}" "$array" "--size=$1" >>"$socket.log"; }

attribute() {
	if [ $# = 1 ]; then
		"$ashlar" get "${control[@]}" "sys/block/$array/md/$1"
	else
		"$ashlar" set "${control[@]}" "sys/block/$array/md/$1" "$2"
	fi
}

attribute_of() { echo "dev-$1.img"; }
examine() { "$ashlar" md examine ${2:+"--$2"} "$1.img"; }
dirty_bits() { examine "$1" bitmap | sed -n 's/.* bits (chunks), \([0-9]*\) dirty .*/\1/p'; }
bad_blocks_on() { examine "$1" badblocks | sed -n 's/^ *\([0-9]*\) for \([0-9]*\) sectors$/\1 \2/p'; }
