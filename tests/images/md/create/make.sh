#!/bin/bash
# Makes expect.txt: the superblocks and bitmap superblocks `mdadm --create` (4.2) writes for every
# case of cases.txt, in a real kernel that is kept from touching them (freeze.c).
# usage: make.sh   (needs the packages tests/oracle/README.md names)
set -e
cd "$(dirname "$0")"
python3 cases.py >cases.txt
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
gcc -shared -fPIC -O -o "$work/freeze.so" freeze.c -ldl
echo "exec python3 '$PWD/guest.py' '$work/freeze.so'" >"$work/guest.sh"
../../../oracle/uml-run --mem 1G --timeout 900 --rw "$PWD" "$work/guest.sh"
