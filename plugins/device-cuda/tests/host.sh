#!/usr/bin/env bash
# What the host does in a step of device cuda, counted by the emulator: graphs and its own copies are all that it enqueues, and it waits for
# no stream inside the step. Between two it reads the loss and the norm and writes the learning rate, from memory that is not pinned:
# three waits, however long the step.   host.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN
set -u
heddle=$(realpath "$1")
HEDDLE_PLUGIN_PATH=$(realpath "$2")
export HEDDLE_PLUGIN_PATH
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
cd "$work" || exit 1

head -c 20000 /dev/zero | tr '\0' 'a' >corpus.txt
cat >job.yaml <<'JOB'
job: {name: host, seed: 3}
device: {use: cuda-emulated}
optimizer: {use: adamw, lr: 1e-3, clip: 1.0}
model: {use: transformer, family: llama, layers: 2, hidden: 32, heads: 2, kv_heads: 1, ffn: 48, vocab: 256}
data: {train: corpus.txt, seq_len: 16, batch: 4, micro_batch: 2}
precision: {compute: bf16}
JOB

# counts STEPS WORD...: waits, enqueued and graphs of all processes of a run.
counts() {
    local steps=$1
    shift
    rm -f counts.txt
    HEDDLE_EMULATE_COUNTS=$work/counts.txt "$heddle" train job.yaml job.steps="$steps" metrics.every=1 "$@" >out 2>&1 || cat out >&2
    awk '{ waits += $2; enqueued += $4; graphs += $6 } END { print waits + 0, enqueued + 0, graphs + 0 }' counts.txt
}

# a_step NAME GRAPHS COPIES WORD...: of one rank's step, which is half of what five steps do more than three.
a_step() {
    local name=$1 graphs=$2 copies=$3 few many
    shift 3
    few=$(counts 3 "$@") many=$(counts 5 "$@")
    read -r waits enqueued replayed < <(echo "$few $many" | awk '{ print ($4 - $1) / 2, ($5 - $2) / 2, ($6 - $3) / 2 }')
    [ "$waits" = 3 ]
    verdict $? "$name: the host waits $waits times a step ($few, $many)"
    [ "$replayed" = "$graphs" ]
    verdict $? "$name: $replayed graphs a step, not $graphs ($few, $many)"
    [ "$((enqueued - replayed))" = "$copies" ]
    verdict $? "$name: $((enqueued - replayed)) things beside graphs a step, not $copies ($few, $many)"
}
# A graph for each micro-batch, one before and one after them; ids and labels in for each, and the three numbers.
a_step "two micro-batches" 4 7
a_step "five micro-batches" 7 13 data.batch=10
a_step "offload" 4 7 "strategies=[{use: zero, stage: 1, offload: {optimizer: host}}]"

# queues WORD...: how many a run's driver was started with.
queues() {
    counts 1 "$@" >/dev/null
    awk '$6 + $2 > 0 { print $8 }' counts.txt
}
[ "$(queues)" = 32 ]
verdict $? "32 queues: $(cat counts.txt)"
[ "$(queues device.connections=3)" = 3 ]
verdict $? "3 queues, as the job says: $(cat counts.txt)"
[ "$(CUDA_DEVICE_MAX_CONNECTIONS=5 queues device.connections=0)" = 5 ]
verdict $? "5 queues, as the environment says: $(cat counts.txt)"

# Memory is zeroed by the device, so nothing but what a run begins with goes there: parameters and states once.
counts 1 model.ffn=4096 >/dev/null
persistent=$("$heddle" explain job.yaml job.steps=1 model.ffn=4096 --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["totals"]["memory"]["persistent_bytes"])')
copied=$(awk '{ n += $10 } END { print n }' counts.txt)
[ "$copied" -gt 0 ] && [ "$copied" -lt $((persistent * 3 / 2)) ]
verdict $? "$copied bytes were copied for $persistent persistent ones"

finish
