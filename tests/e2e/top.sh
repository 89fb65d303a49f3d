#!/bin/bash
# top.sh - ashlar top in a real terminal, tmux: what it shows of a daemon under load, its keys, terminals of several sizes, and that the
# terminal is as before when it ends.
#
# Nothing sleeps for a fixed time: each step waits for what it expects to be on the screen. The program reads keys before it draws, so a
# key that is sent after something was seen cannot be lost; some are sent earlier on purpose, and must not be lost either.
#
# usage: top.sh [-r ROUNDS]
# environment: ASHLAR=FILE the program, default target/debug/ashlar
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
rounds=1
[ "${1:-}" != -r ] || rounds=$2
needs "$ashlar"
command -v tmux >/dev/null || {
	echo "top.sh: there is no tmux: scripts/setup test" >&2
	exit 1
}
ashlar=$(realpath "$ashlar")

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-top.XXXXXX")
server=''
# A server of tmux of its own, with no settings of the user's.
screen() { tmux -S "$W/tmux" -f /dev/null "$@"; }
cleanup() {
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	screen kill-server 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf --one-file-system "$W"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "top.sh: $*" >&2
	screen capture-pane -p -t top >&2 2>/dev/null || true
	[ ! -e "$W/log" ] || tail -n 20 "$W/log" >&2
	exit 1
}
cd "$W"

# Without a session the server would end, and the next one might come while it does.
screen new-session -d -s other cat

serve() {
	rm -f control
	: >out
	"$ashlar" serve a0 a1 plain --control control --nbd unix:nbd.sock >out 2>log &
	server=$!
	until_done 60 "the daemon is ready" grep -qx ready out
}
client() { "$ashlar" "$@" --control control; }
shows() { screen capture-pane -p -t top 2>/dev/null | grep -qE -- "$1"; }
hides() { ! shows "$1"; }
see() { until_done 60 "/$1/ is on the screen" shows "$1"; }
miss() { until_done 60 "/$1/ is gone from the screen" hides "$1"; }
keys() { screen send-keys -t top "$@"; }
# begin WIDTH HEIGHT [VARIABLE=VALUE]... - a shell in a terminal of this size; its prompt is a $
begin() {
	local width=$1 height=$2
	shift 2
	screen new-session -d -s top -x "$width" -y "$height" env "$@" PS1='$ ' TERM=screen-256color sh
	see '^\$'
}
# top - types the command, and tells how it ends
top() { keys "$(printf '%q ' "$ashlar") top --control control -d 0.3; echo ended with \$?" Enter; }
# ended STATUS - the program has ended, and the terminal shows what it did before, with what is typed
ended() {
	see "ended with $1"
	miss 'F10 Quit'
	keys "echo typed'_'text" Enter
	see '^typed_text'
	screen kill-session -t top
}

round() {
	truncate -s 64M a0 a1 plain
	"$ashlar" md create -l1 -n2 --homehost=any --assume-clean --run /dev/md/data a0 a1 >/dev/null
	serve

	# What it shows; a selection, an order, a filter, a tree.
	begin 130 30
	top
	see 'up 0:'
	see '^md/data +md +volume'
	see 'F10 Quit'
	client md fail md/data a1 >/dev/null
	see 'md/data: raid1, degraded, 1 of 2 members work'
	keys F4 pla
	miss '^md/data '
	see '^plain '
	keys Enter Escape
	see '^md/data '
	keys t
	see '^  a0 '
	keys t
	miss '^  a0 '
	keys h
	see 'F10 q +quit'
	keys h
	see '^plain '
	keys Space
	see 'paused'
	keys Space
	miss 'paused'
	keys 0
	see 'no idle devices'
	keys 0
	# Sizes: columns are left out, and come back.
	screen resize-window -t top -x 60 -y 10
	see '^DEVICE +KIND +READ/S +WRITE/S +RD-MB/S +WR-MB/S +QUEUE +BUSY *$'
	screen resize-window -t top -x 130 -y 30
	see 'WR-P99 MERGE'
	# A change of the size and a key at the same time.
	screen resize-window -t top -x 100 -y 20 \; send-keys -t top I
	see 'inverted'
	keys q
	ended 0

	# A key that is typed before the program starts.
	begin 80 24 NO_COLOR=1
	keys "$(printf '%q ' "$ashlar") top --control control; echo ended with \$?" Enter q
	ended 0

	# An Esc and a q at once, which many programs take for Alt-q.
	begin 80 24
	top
	see 'F10 Quit'
	keys Escape q
	ended 0

	# Ctrl-C, F10, a signal.
	begin 80 24
	top
	see 'F10 Quit'
	keys C-c
	ended 0
	begin 80 24
	top
	see 'F10 Quit'
	keys F10
	ended 0
	begin 80 24
	top
	see 'F10 Quit'
	kill -TERM "$(pgrep -P "$(screen display-message -p -t top '#{pane_pid}')")"
	ended 0

	# The daemon ends.
	begin 100 24
	top
	see 'F10 Quit'
	kill $server
	wait $server || fail "the daemon did not stop cleanly"
	server=''
	see 'cannot talk to the daemon'
	ended 1
	rm -f a0 a1 plain
}

for ((n = 1; n <= rounds; n++)); do
	begun=${EPOCHREALTIME/./}
	round
	echo "round $n of $rounds: $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
done
