#!/bin/sh
# Compares the debug information of the public structs with the committed text of abidw, without suppressions.
# usage: compare.sh [--write]     exit 77: this machine cannot tell
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v abidw >/dev/null && command -v gcc >/dev/null || exit 77
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-abi-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Built here and not by the build system: the text must not depend on its flags. Inside the folder: nor on its path.
cp -r "$here/../../../../include" "$work/include"
cp "$here/abi_v1.c" "$work/"
cd "$work"
gcc -std=gnu11 -g -gdwarf-4 -O0 -fPIC -shared -Wl,-soname,abi_v1 -Iinclude abi_v1.c -o abi_v1.so
abidw --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed --no-architecture --type-id-style hash \
    --out-file abi_v1.abi abi_v1.so

if [ "${1:-}" = --write ]; then
    cp abi_v1.abi "$here/abi_v1.abi"
elif [ "$(head -1 abi_v1.abi)" = "$(head -1 "$here/abi_v1.abi")" ]; then
    diff "$here/abi_v1.abi" abi_v1.abi >&2 # the same abidw wrote both
else
    abidiff --no-architecture "$here/abi_v1.abi" abi_v1.so >&2
fi
