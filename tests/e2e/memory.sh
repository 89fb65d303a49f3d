#!/bin/bash
# memory.sh - the daemon and a writer to its mount have one limit of memory, and both keep running.
#
# In a User Mode Linux guest, as root of which the daemon has CAP_SYS_RESOURCE: a control group (of version 1 and 2) of 70 MiB, in it
# the daemon and a dd with fsync on an ext4 on a loop device on the mount. Without what docs/memory.md describes they stop for ever
# with version 1. Without the right the daemon warns; with version 1 the two may then stop, which depends on when the kernel needs memory.
#
# usage: memory.sh [VERSION...]    default: 1 2
# environment: ASHLAR=FILE the program, default target/debug/ashlar; KEEP=1 keep the files
# Needs the packages of scripts/setup oracle.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"

LIMIT_MIB=70
versions=("$@")
[ $# -gt 0 ] || versions=(1 2)
if ! command -v linux.uml >/dev/null; then
	echo "memory.sh: skipped: no linux.uml (scripts/setup oracle)"
	exit 0
fi
W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-memory.XXXXXX")
cleanup() { if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf "$W"; fi; }
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

warning="writers to the mount in the same memory limit"
for version in "${versions[@]}"; do
	for right in yes no; do
		rm -f "$W/disk"
		truncate -s 512M "$W/disk"
		guest=("$here/memory-guest.sh" "$ashlar" "$version" "$right" "$LIMIT_MIB")
		"$root/tests/oracle/uml-run" --timeout 280 --disk "$W/disk" "${guest[@]}" >"$W/log" 2>"$W/kernel" || [ $? = 123 ] || {
			cat "$W/kernel" "$W/log"
			echo "memory.sh: version $version, right $right: the guest failed" >&2
			exit 1
		}
		warned=no
		! grep -q "$warning" "$W/log" || warned=yes
		ending=$(grep -Eo '^(done|stuck)' "$W/log" || true)
		case "$version $right $ending" in
		*done | '1 no stuck') ;;
		*) ending='' ;;
		esac
		if [ -z "$ending" ] || [ $warned = $right ]; then
			cat "$W/log"
			echo "memory.sh: version $version, right $right: not as it should be" >&2
			exit 1
		fi
		echo "version $version, right $right: $ending"
	done
done
