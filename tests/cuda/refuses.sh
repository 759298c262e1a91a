#!/usr/bin/env bash
# A machine without a GPU or without a driver: `heddle plugins` says why, and a job that asks for it ends with exit code 2 and one
# message.   refuses.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN
set -u
heddle=$(realpath "$1")
export HEDDLE_PLUGIN_PATH=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

verdict() { # verdict OK WHAT: OK is 0 where it holds
    if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "failed: $2"; fi
}

head -c 4096 /dev/zero >corpus.txt
cat >job.yaml <<'JOB'
job: {name: refused, steps: 1}
launch: {ranks: 2}
device: {use: cuda-emulated}
optimizer: {use: sgd, lr: 0.1}
model: {use: transformer, family: gpt2, layers: 1, hidden: 16, heads: 2, vocab: 256, max_seq_len: 8}
data: {train: corpus.txt, seq_len: 8, batch: 2, micro_batch: 1}
JOB

refused() { # refused DEVICES REASON
    export HEDDLE_EMULATE_DEVICES=$1
    "$heddle" plugins | grep '^device *cuda-emulated .* no .*'"$2" >/dev/null
    verdict $? "plugins says '$2'"
    "$heddle" train job.yaml >out 2>err
    [ $? = 2 ]
    verdict $? "exit code 2 with $1"
    grep "plugin device-cuda-emulated cannot be used on this machine: $2" err >/dev/null
    verdict $? "the message says '$2': $(cat err)"
    [ "$(wc -l <err)" = 1 ]
    verdict $? "one line, not: $(cat err)"
    [ ! -e runs ] && [ ! -s out ]
    verdict $? "nothing began"
}

refused driver "no usable NVIDIA driver"
refused 0 "no NVIDIA GPU"

HEDDLE_EMULATE_DEVICES=2 "$heddle" train job.yaml device.index=2 2>err
[ $? = 2 ] && grep "device option index: 2, but there are 2 GPUs, from 0" err >/dev/null
verdict $? "a GPU that is not there: $(cat err)"

HEDDLE_EMULATE_DEVICES=1 HEDDLE_EMULATE_CAPABILITY=86 "$heddle" train job.yaml launch.ranks=1 device.fp8=e4m3 2>err
[ $? = 2 ] && grep "device option fp8: GPU 0 has compute capability 8.6, and products in fp8 need 8.9 or newer; device.fp8=off" err >/dev/null
verdict $? "fp8 on a GPU that has none: $(cat err)"

echo "100%: Checks: $((passed + failed)), Failures: $failed, Errors: 0"
[ "$failed" = 0 ]
