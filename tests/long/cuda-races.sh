#!/bin/bash
# Races in device-cuda's kernels, by plugins/device-cuda/tests/emulate/race.cc, while its suites run: an hour of a core, and
# minutes to compile the kernels, which is done here. Part of ./run-tests --long.
#     tests/long/cuda-races.sh [BUILD]
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd) || exit 2
plugin=plugins/device-cuda/tests/heddle-device-cuda-raced.so
ninja -C "$build" "$plugin" >/dev/null || exit 1
export CK_TIMEOUT_MULTIPLIER=400
export HEDDLE_TEST_DEVICE=$build/$plugin HEDDLE_TEST_REFERENCE=$build/plugins/device-cpu/heddle-device-cpu.so
failed=0
for suite in tests/device/test_device_{cached,code,einsum,fast,head,moe,norm_sums,orthogonalise,ring,rounding,sumsq} \
    plugins/device-cuda/tests/test_cuda_{epilogues,fp8,grouped,kernels,attention}; do
    "$build/$suite" || failed=1
done
"$build/plugins/device-cuda/tests/test_cuda_attention" wgmma || failed=1
exit $failed
