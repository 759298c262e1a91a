#!/bin/bash
# All of tests/device's attention and ring suites on the emulated GPU: two minutes of a core. Part of ./run-tests --long.
#     tests/long/cuda-attention.sh [BUILD]
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd) || exit 2
export CK_TIMEOUT_MULTIPLIER=20
export HEDDLE_TEST_DEVICE=$build/plugins/device-cuda/tests/heddle-device-cuda-emulated.so HEDDLE_TEST_REFERENCE=$build/plugins/device-cpu/heddle-device-cpu.so
failed=0
for suite in attention ring; do
    "$build/tests/device/test_device_$suite" || failed=1
done
exit $failed
