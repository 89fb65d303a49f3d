#!/bin/bash
# Makes superblocks with another value in every field, without md: see make.py.
cd "$(dirname "$0")" && exec python3 make.py
