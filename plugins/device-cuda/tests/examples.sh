#!/bin/sh
# Every example job on device.use=cuda as it stands, threads and all: compiled and proved; the smallest takes a step.
# usage: examples.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN EXAMPLES
set -eu
heddle=$(realpath "$1")
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-examples-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
for job in "$3"/*.yaml; do
    "$heddle" check "$job" plugins.path="$2" device.use=cuda-emulated >out 2>&1 || { echo "$job:"; cat out; exit 1; }
done
if "$heddle" plugins device-cuda >out 2>&1; then # the real one has another name, too
    "$heddle" check "$3/two-ranks.yaml" device.use=gpu >out || { cat out; exit 1; }
fi
"$heddle" train "$3/two-ranks.yaml" plugins.path="$2" device.use=cuda-emulated data.train="$3/two-ranks.yaml" job.steps=1 \
    model.layers=1 data.seq_len=16 data.batch=2 data.micro_batch=1
