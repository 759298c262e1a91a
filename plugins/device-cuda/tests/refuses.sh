#!/usr/bin/env bash
# A machine without a GPU or without a driver: `heddle plugins` says why, and a job that asks for it ends with exit code 2 and one
# message.   refuses.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN
set -u
heddle=$(realpath "$1")
folder=$(realpath "$2")
export HEDDLE_PLUGIN_PATH=$folder
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
cd "$work" || exit 1

yes text | head -c 4096 >corpus.txt
cat >job.yaml <<'JOB'
job: {name: refused, steps: 1}
launch: {ranks: 2}
device: {use: cuda-emulated}
optimizer: {use: sgd, lr: 0.1}
model: {use: transformer, family: gpt2, layers: 1, hidden: 16, heads: 2, vocab: 256, max_seq_len: 8}
data: {train: corpus.txt, seq_len: 8, batch: 2, micro_batch: 1}
JOB

refused() { # refused PLUGIN REASON [WORD...]
    local plugin=$1 reason=$2
    shift 2
    "$heddle" plugins | grep "^${plugin%%-*} *${plugin#*-} .* no .*$reason" >/dev/null
    verdict $? "plugins says '$reason' of $plugin"
    "$heddle" train job.yaml "$@" >out 2>err
    [ $? = 2 ]
    verdict $? "exit code 2 without $plugin"
    grep "plugin $plugin cannot be used on this machine: $reason" err >/dev/null
    verdict $? "the message says '$reason': $(cat err)"
    [ "$(wc -l <err)" = 1 ]
    verdict $? "one line, not: $(cat err)"
    [ ! -e runs ] && [ ! -s out ]
    verdict $? "nothing began"
}

HEDDLE_EMULATE_DEVICES=driver refused device-cuda-emulated "no usable NVIDIA driver"
HEDDLE_EMULATE_DEVICES=0 refused device-cuda-emulated "no NVIDIA GPU"

# The real ones, where this machine has no driver.
no_driver() { ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && [ ! -e /proc/driver/nvidia ]; }
if no_driver; then
    unset HEDDLE_PLUGIN_PATH LD_LIBRARY_PATH # the emulator's driver lies there
    for ranks in 1 2; do
        ! "$heddle" plugins | grep -q '^device *cuda *[0-9]' ||
            refused device-cuda "no usable NVIDIA driver" device.use=cuda launch.ranks=$ranks
    done
    refused comm-nccl "no NVIDIA driver here" device.use=cpu comm.use=nccl
    "$heddle" bench --comm nccl >out 2>err
    [ $? = 2 ] && grep "plugin comm-nccl cannot be used on this machine: no NVIDIA driver here" err >/dev/null && [ ! -s out ]
    verdict $? "bench refuses nccl: $(cat err)"
    export HEDDLE_PLUGIN_PATH=$folder
fi

HEDDLE_EMULATE_DEVICES=2 "$heddle" train job.yaml device.index=2 2>err
[ $? = 2 ] && grep "device option index: 2, but there are 2 GPUs, from 0" err >/dev/null
verdict $? "a GPU that is not there: $(cat err)"

HEDDLE_EMULATE_DEVICES=1 HEDDLE_EMULATE_CAPABILITY=86 "$heddle" train job.yaml launch.ranks=1 device.fp8=e4m3 2>err
[ $? = 2 ] && grep "device option fp8: GPU 0 has compute capability 8.6, and products in fp8 need 8.9 or newer; device.fp8=off" err >/dev/null
verdict $? "fp8 on a GPU that has none: $(cat err)"

finish
