#!/bin/sh
# Writing a checkpoint of 124M parameters with optimizer state, in turn with dd of as many bytes on the same disk.
# bench/checkpoint/run.sh [FOLDER on the disk to measure] [rounds]     after ./quickstart or ./run-tests: from their build tree
set -e
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${1:-.}"
dir=$(cd "${1:-.}" && mktemp -d "$PWD/heddle-bench-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$root"
ninja -C build bench/checkpoint/write > /dev/null
write=build/bench/checkpoint/write
head -c 1487000000 /dev/urandom > "$dir/source"
speed() { tail -1 | sed 's/.*copied, //'; }
for round in $(seq "${2:-5}"); do
    cat "$dir/source" > /dev/null
    sync
    echo "dd cached, fsync: $(dd if="$dir/source" of="$dir/out" bs=4M conv=fsync 2>&1 | speed)"
    rm -f "$dir/out"
    sync
    echo "dd direct, fsync: $(dd if="$dir/source" of="$dir/out" bs=4M oflag=direct conv=fsync 2>&1 | speed)"
    rm -f "$dir/out"
    sync
    "$write" "$dir/ckpt" 1
    sync
    "$write" "$dir/ckpt" 0
done
