#!/bin/bash
# recipe.sh - make the files in this directory anew, in a real kernel (UML).
#
# Debian packages: scripts/setup test.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../../..")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir "$work/out"
truncate -s 96M "$work/disk0" "$work/disk1"
"$root/tests/oracle/uml-run" --rw "$work/out" --disk "$work/disk0" --disk "$work/disk1" \
	"$root/tests/interop/dm-thin-guest.sh" "$work/out"
for pool in small odd; do
	thin_dump "$work/out/$pool.metadata" >"$here/$pool.xml"
	python3 - "$work/out/$pool.metadata" "$here/$pool.metadata" <<'PY'
import sys
image = open(sys.argv[1], "rb").read().rstrip(b"\0")
open(sys.argv[2], "wb").write(image.ljust(-(-len(image) // 4096) * 4096, b"\0"))
PY
done
