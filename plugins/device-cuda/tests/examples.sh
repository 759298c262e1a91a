#!/usr/bin/env bash
# Every job of examples/, on the emulator: what it says of its device is accepted, and the loss is that of device cpu. Sizes are smaller, for
# the emulator's sake; the rest is the example's.   examples.sh HEDDLE FOLDER-OF-THE-EMULATED-PLUGIN EXAMPLES
set -u
heddle=$(realpath "$1")
HEDDLE_PLUGIN_PATH=$(realpath "$2")
examples=$(realpath "$3")
export HEDDLE_PLUGIN_PATH
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
cd "$work" || exit 1

yes "In the beginning God created the heaven and the earth." | head -c 20000 >corpus.txt
# losses DEVICE WORD...: of the steps of the job in job.yaml.
losses() {
    local device=$1
    shift
    rm -rf runs
    "$heddle" train job.yaml device.use="$device" data.train=corpus.txt job.steps=2 schedule.warmup=1 data.seq_len=32 data.batch=4 \
        data.micro_batch=1 metrics.jsonl=runs/m.jsonl "$@" >out 2>&1 || cat out >&2
    sed -nE 's/^\{"step": [0-9]+, "loss": ([0-9.]+),.*/\1/p' runs/m.jsonl 2>/dev/null | tr '\n' ' '
}

for example in "$examples"/*.yaml; do
    sed -E 's/hidden: [0-9]+/hidden: 48/; s/ffn: [0-9]+/ffn: 64/; s/, decay: [0-9]+/, decay: 1/; s/layers: [0-7]/layers: 2/; s/layers: 8/layers: 4/' "$example" >job.yaml
    cpu=$(losses cpu) emulated=$(losses cuda-emulated)
    echo "$cpu/ $emulated" | awk -F/ '{ n = split($1, a, " "); m = split($2, b, " "); bad = n != 2 || m != 2
        for (i = 1; i <= n; i++) bad = bad || (a[i] - b[i]) ^ 2 > (1e-4 * a[i]) ^ 2
        exit bad }'
    verdict $? "$(basename "$example"): on the emulator $emulated, on cpu $cpu"
done
[ "$passed" -gt 5 ]
verdict $? "there are fewer examples than there were"
finish
