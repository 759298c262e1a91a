#!/bin/bash
# The PTX of device-cuda's kernels for compute_80 against that for compute_90a: the same but for its target, so
# plugins/device-cuda/archs compiles both architectures in one pass. Not for wgmma, which is of sm_90a alone. Five minutes of a
# core; part of ./run-tests --long.
#     tests/long/cuda-archs.sh NVCC
set -u
cd "$(dirname "$0")/../../plugins/device-cuda" || exit 2
# shellcheck source-path=SCRIPTDIR source=../../plugins/device-cuda/tests/checks.sh
. tests/checks.sh

# ptx ARCH SOURCE
ptx() {
    "$nvcc" -O3 -std=c++17 -I ../../include -I . "-arch=$1" -ptx "$2" -o "$work/$1" && grep -v '^\.target' "$work/$1" >"$work/$1.ptx"
}
nvcc=$1
for source in */*.cu; do
    [ "$source" != attention/attention_wgmma.cu ] || continue
    ptx compute_80 "$source" && ptx compute_90a "$source" && cmp "$work/compute_80.ptx" "$work/compute_90a.ptx"
    verdict $? "$source"
done
finish
