#!/bin/sh
# Writing a checkpoint of 124M parameters with optimizer state, in turn with dd of as many bytes on the same disk.
# bench/checkpoint/run.sh [FOLDER on the disk to measure] [rounds]
set -e
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${1:-.}"
dir=$(mktemp -d "${1:-.}/heddle-bench-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$root"
cc -O2 -g -std=gnu11 -D_GNU_SOURCE -DHEDDLE_STATIC_PLUGIN=posix -I. -Iinclude bench/checkpoint/write.c core/run/checkpoint*.c \
    core/run/safetensors*.c plugins/ckpt-posix/*.c core/base/base.c core/base/log.c -o "$dir/write" -ljansson -lxxhash -lpthread -lm
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
    "$dir/write" "$dir/ckpt" 1
    sync
    "$dir/write" "$dir/ckpt" 0
done
