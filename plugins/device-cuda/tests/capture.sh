#!/usr/bin/env bash
# A piece of a step that cannot be captured as a CUDA graph is launched one by one: where a capture does not begin, does not end, or has
# something in it that CUDA refuses, be it a kernel's launch or a product, the job goes on with the same numbers.
# capture.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN
set -u
heddle=$(realpath "$1")
HEDDLE_PLUGIN_PATH=$(realpath "$2")
export HEDDLE_PLUGIN_PATH
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
cd "$work" || exit 1

head -c 20000 /dev/urandom >corpus.txt
cat >job.yaml <<'JOB'
job: {name: capture, seed: 3, steps: 4}
device: {use: cuda-emulated}
optimizer: {use: adamw, lr: 1e-3, clip: 1.0}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 48, vocab: 256}
data: {train: corpus.txt, seq_len: 16, batch: 4, micro_batch: 2}
precision: {compute: bf16}
metrics: {jsonl: metrics.jsonl, every: 1}
JOB

# numbers WORD...: losses and norms of a run.
numbers() {
    rm -f metrics.jsonl
    "$heddle" train job.yaml "$@" >out 2>err || cat err >&2
    grep -o '"\(loss\|grad_norm\)": *[-0-9][^,}]*' metrics.jsonl
}

plain=$(numbers device.capture=false)
[ "$(echo "$plain" | grep -c loss)" = 4 ]
verdict $? "a run without captures: $plain"
[ "$(numbers)" = "$plain" ] && ! grep -q "one by one" err
verdict $? "captured, all of it: $(cat err)"
for what in begin end 1 2 3 4 5 6 8 12 20; do
    export HEDDLE_EMULATE_CAPTURE=$what
    [ "$(numbers)" = "$plain" ]
    verdict $? "$what cannot be captured: $(cat err)"
    grep "are launched one by one: .*\(cudaErrorStreamCapture\|EXECUTION_FAILED\)" err >/dev/null
    verdict $? "$what: a warning says why: $(cat err)"
done

finish
