#!/bin/bash
# filesystems.sh - ext4, xfs and btrfs live on ashlar's RAID10 arrays, through FUSE and a loop device.
#
# For each layout (n2, f2, o2) and file system: make the array and the file system, then rounds of: verify the
# checksums of what is there, write files, delete some, fstrim, unmount, check the file system. There is a git
# repository with a clone, too: a commit in each round, and git fsck after the next mount. After every fifth
# round ashlar is stopped, the copies on the members are compared, and ashlar starts again. What fstrim discarded
# beside a file would show.
#
# usage: filesystems.sh [-r ROUNDS] [LAYOUT...]     default: 20 rounds of each, n2 f2 o2
# environment: ASHLAR=FILE the program, default target/debug/ashlar; FS="ext4 xfs btrfs"; KEEP=1 keep the files
# Needs root (loop devices, mounts) and the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
arguments=("$@") rounds=20
if [ "${1:-}" = -r ]; then rounds=$2; shift 2; fi
layouts=("${@:-n2}")
[ $# -gt 0 ] || layouts=(n2 f2 o2)
read -ra kinds <<<"${FS:-ext4 xfs btrfs}"
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "filesystems.sh: CI must run as root" >&2; exit 1; }
	echo "filesystems.sh: skipped: loop devices and mounts need root"
	exit 0
fi
# In a mount namespace of its own: others that are made meanwhile would keep a copy of each mount, so that umount
# does not end it; and no mount outlives this one.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "${arguments[@]}"

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-fs.XXXXXX")
# shellcheck source=tests/e2e/array-on-loop.sh
. "$here/array-on-loop.sh"
cleanup() {
	if mountpoint -q "$W/mnt"; then umount "$W/mnt"; fi
	[ -z "$loop" ] || losetup -d "$loop" || true
	[ -z "$server" ] || { kill "$server" && wait "$server"; } || true
	! mountpoint -q "$W/vol" || umount -l "$W/vol"
	[ "${KEEP:-}" = 1 ] || rm -rf --one-file-system "$W"
}
trap cleanup EXIT
mkdir "$W/mnt" "$W/vol"
fail() { echo "filesystems.sh: $*" >&2; tail -n 20 "$W/log" >&2; exit 1; }

check() {
	case $1 in
	ext4) e2fsck -fn "$loop" >"$W/fsck" 2>&1 ;;
	xfs) xfs_repair -n "$loop" >"$W/fsck" 2>&1 ;;
	btrfs) btrfs check --check-data-csum "$loop" >"$W/fsck" 2>&1 ;;
	esac || { cat "$W/fsck"; fail "$1: the file system is damaged"; }
}

make_fs() {
	case $1 in
	ext4) mkfs.ext4 -q -F "$loop" ;;
	xfs) mkfs.xfs -q -f "$loop" ;;
	btrfs) mkfs.btrfs -q -f "$loop" >/dev/null ;;
	esac
}

quiet_git() {
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 \
		git -c user.name=e2e -c user.email=e2e@localhost -c init.defaultBranch=main -c gc.auto=0 "$@" >>"$W/log" 2>&1
}

# fsck_git - what the last round left of the repository and its clone, as another mount shows it
fsck_git() {
	local tree
	for tree in "$W"/mnt/git/*; do
		quiet_git -C "$tree" fsck --full --strict || fail "git fsck of $tree"
		quiet_git -C "$tree" diff --quiet HEAD || fail "$tree differs from what was committed"
	done
}

# commit NUMBER - one more commit, now and then a pack of all objects, and a new clone
commit() {
	local tree=$W/mnt/git/tree
	[ -d "$tree" ] || quiet_git init "$tree" || fail "git init"
	seq "$1" $((RANDOM % 20000 + $1)) >"$tree/numbers"
	head -c $((RANDOM * 8 + 1)) /dev/urandom >"$tree/data-$(($1 % 7))"
	quiet_git -C "$tree" add --all || fail "git add"
	quiet_git -C "$tree" commit -m "round $1" || fail "git commit"
	[ $(($1 % 3)) != 0 ] || quiet_git -C "$tree" gc --prune=now || fail "git gc"
	rm -rf "$W/mnt/git/clone"
	quiet_git clone --no-hardlinks "$tree" "$W/mnt/git/clone" || fail "git clone"
}

# files - those outside of the repository
files() { find "$1" -path "$1/git" -prune -o -type f -print0; }

# round NUMBER - verify what the last round left, write, delete, trim
round() {
	if [ -e "$W/sums" ]; then
		(cd "$W/mnt" && sha256sum --quiet -c "$W/sums") || fail "round $1: a file changed"
		fsck_git
	fi
	local i
	for i in $(seq 12); do
		# From a few bytes to some MiB, so that files begin and end anywhere in stripes.
		head -c $((RANDOM * RANDOM % (4 << 20) + 1)) /dev/urandom >"$W/mnt/r$1-$i"
	done
	commit "$1"
	sync -f "$W/mnt"
	files "$W/mnt" | shuf -z -n 9 | xargs -0 -r rm -f
	(cd "$W/mnt" && files . | sort -z | xargs -0 -r sha256sum) >"$W/sums"
	sync -f "$W/mnt"
	fstrim "$W/mnt"
}

for layout in "${layouts[@]}"; do
	for kind in "${kinds[@]}"; do
		begin=$(date +%s)
		rm -f "$W"/m?.img "$W/sums"
		for m in 0 1 2 3; do truncate -s 384M "$W/m$m.img"; done
		"$ashlar" md create --level=10 --layout="$layout" --chunk=64K --raid-devices=4 "$W"/m?.img >>"$W/log" 2>&1 ||
			fail "md create"
		serve
		make_fs "$kind"
		for n in $(seq "$rounds"); do
			mount "$loop" "$W/mnt"
			round "$n"
			umount "$W/mnt"
			check "$kind"
			if [ $((n % 5)) = 0 ]; then
				stop >>"$W/log"
				serve
			fi
		done
		mount "$loop" "$W/mnt"
		(cd "$W/mnt" && sha256sum --quiet -c "$W/sums") || fail "a file changed"
		fsck_git
		umount "$W/mnt"
		stop >>"$W/log"
		allocated=$(du -cm "$W"/m?.img | awk 'END{print $1}')
		echo "$layout $kind: $rounds rounds, copies equal, checks clean, $allocated MiB allocated, $(($(date +%s) - begin)) s"
	done
done
