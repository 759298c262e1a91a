#!/bin/sh
# Optimizers of a third party in whole jobs: what they may, and what is refused of them.
# usage: optimizer.sh HEDDLE PLUGINS SOURCE     PLUGINS: folder with the builds of optimizer.c; SOURCE: top of the tree
set -eu
heddle=$(realpath "$1") plugins=$2 source=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-optimizer-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"
for i in 1 2 3 4 5 6 7 8; do echo "the warp and the weft are woven into one cloth, again and again."; done >text
cat >job.yaml <<'EOT'
job: {name: optimizer, steps: 6, seed: 3}
optimizer: {use: one, lr: 2e-2}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4, shuffle: false}
EOT
export HEDDLE_PLUGIN_PATH=$plugins

# try CODE TEXT OVERRIDES...: trains, and compares the exit code and what is printed.
try()
{
    code=$1 text=$2
    shift 2
    got=0
    "$heddle" train job.yaml "$@" >log 2>&1 || got=$?
    [ $got -eq "$code" ] || { cat log >&2; echo "$*: exit $got instead of $code" >&2; exit 1; }
    grep -qF -- "$text" log || { cat log >&2; echo "$*: '$text' is not in the log" >&2; exit 1; }
}

loss() { sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' runs/optimizer/metrics.jsonl | tail -1; }

# Any number of states that are equal trains the same, in fp32 and beside a low-precision copy, in whatever shards.
try 0 "step 6" launch.ranks=1 'strategies=[{use: zero, stage: 0}]'
want=$(loss)
[ -n "$want" ]
for name in three four; do
    for stage in 0 1 3; do
        try 0 "step 6" optimizer.use=$name launch.ranks=2 "strategies=[{use: zero, stage: $stage}]"
        [ "$(loss)" = "$want" ] || { echo "$name, stage $stage: loss $(loss), not $want" >&2; exit 1; }
    done
done
try 0 "step 6" launch.ranks=2 precision.compute=bf16
want_bf16=$(loss)
try 0 "step 6" optimizer.use=four launch.ranks=2 precision.compute=bf16
[ "$(loss)" = "$want_bf16" ] || { echo "four states in bf16: loss $(loss), not $want_bf16" >&2; exit 1; }

# A step that fails ends the job, with the optimizer's own words.
try 1 "the optimizer's step failed: the factors of step 3 do not converge" optimizer.use=fails launch.ranks=2
if grep -q '"step": *3' runs/optimizer/metrics.jsonl; then echo "step 3 was logged although it failed" >&2; exit 1; fi

# One that wants whole parameters trains as any other, dealt to the ranks; with scratch memory and products of matrices,
# by any kernels; beside a low-precision copy; and in groups of its own. Where the mesh cuts a parameter it is refused.
for name in whole scratch grouped; do
    for stage in 0 1 2 3; do
        try 0 "step 6" optimizer.use=$name launch.ranks=2 "strategies=[{use: zero, stage: $stage}]"
        [ "$(loss)" = "$want" ] || { echo "$name, stage $stage: loss $(loss), not $want" >&2; exit 1; }
    done
done
try 0 "step 6" optimizer.use=whole launch.ranks=4 data.micro_batch=2 'strategies=[{use: zero, stage: 3}]'
try 0 "step 6" optimizer.use=scratch launch.ranks=1 device.kernels=reference
try 0 "step 6" optimizer.use=scratch launch.ranks=2 precision.compute=bf16 'strategies=[{use: zero, stage: 1}]'
[ "$(loss)" = "$want_bf16" ] || { echo "scratch in bf16: loss $(loss), not $want_bf16" >&2; exit 1; }
try 2 "asks for scratch memory beside 4 states: 3 at most" optimizer.use=scratch4 launch.ranks=1
try 2 "into group 65536: numbers end at 65535" optimizer.use=group launch.ranks=1
try 2 "powersgd with stage 1 wants an optimizer that updates parameters in pieces" optimizer.use=whole launch.ranks=2 \
    'strategies=[{use: zero, stage: 1, compress: {kind: powersgd}}]'
try 2 "the mesh cuts" optimizer.use=whole launch.ranks=2 mesh.tp=2 'strategies=[{use: 3d}, {use: zero}]'
try 2 "optim-norate: \`learning_rate\` says nan, which is no learning rate" optimizer.use=norate launch.ranks=1
try 2 "optim-one: \`learning_rate\` says -0.5, which is no learning rate" optimizer.lr=-0.5 launch.ranks=1
try 2 "optimizer.use: \`decay\` says nan of " optimizer.use=nodecay launch.ranks=1
sed -i 's/lr: 2e-2/lr: -2e-2/' job.yaml
try 2 "job.yaml:2:18: optim-one: \`learning_rate\` says -0.02" launch.ranks=1
sed -i 's/lr: -2e-2/lr: 2e-2/' job.yaml
try 2 "optimizer.lr: '.nan' is not a number" optimizer.lr=.nan launch.ranks=1
try 2 "\`states\` says 3, above its n_states, 1" optimizer.use=says launch.ranks=1

# One that was built for ABI 1.0, from headers of its own.
mkdir oldest
${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -o oldest/heddle-optim-oldest.so "$source/tests/core/plugin/abi/oldest.c"
try 0 "step 6" optimizer.use=oldest launch.ranks=2 "plugins.path=[$work/oldest]" 'strategies=[{use: zero, stage: 1}]'
[ "$(loss)" = "$want" ] || { echo "built for ABI 1.0: loss $(loss), not $want" >&2; exit 1; }
try 2 "optimizer.lr: 0 does not train" optimizer.use=oldest optimizer.lr=0 "plugins.path=[$work/oldest]"
"$heddle" test oldest/heddle-optim-oldest.so >log 2>&1 || { cat log >&2; exit 1; }

# States of other shapes: their numbers come back to whom they belong, behind a resume and on another mesh.
for name in rows factors ones; do
    for stage in 0 1 3; do
        try 0 "step 6" optimizer.use=$name launch.ranks=2 "strategies=[{use: zero, stage: $stage}]"
        [ "$(loss)" = "$want" ] || { echo "$name, stage $stage: loss $(loss), not $want" >&2; exit 1; }
    done
    try 0 "step 3" job.steps=3 job.name=$name checkpoint.dir=$name optimizer.use=$name launch.ranks=4 data.micro_batch=2 'strategies=[{use: zero, stage: 3}]'
    try 0 "step 6" job.name=$name checkpoint.dir=$name optimizer.use=$name launch.ranks=1
done
try 2 "\`state\` says kind 9, dtype 5, block 0 of b" optimizer.use=nokind launch.ranks=1
try 2 "\`state\` says kind 1, dtype 5, block 48 of b" optimizer.use=noblock launch.ranks=1
try 2 "state b has rows, columns or factors of " optimizer.use=cutrows launch.ranks=1
try 2 "slot 'state' is for 'step'" optimizer.use=emits launch.ranks=1

# The same in C++11, built as a third party would: from the headers alone.
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    mkdir cxx
    for standard in 11 14 17 20; do
        ${CXX:-c++} -std=c++$standard -Wall -Wextra -Wpedantic -Werror -fPIC -shared -fvisibility=hidden -I "$source/include" \
            -o cxx/heddle-optim-momentum.so "$source/tests/core/plugin/momentum.cc"
        try 0 "step 6" optimizer.use=momentum launch.ranks=2 "plugins.path=[$work/cxx]" 'strategies=[{use: zero, stage: 1}]'
        [ "$(loss)" = "$want" ] || { echo "C++$standard: loss $(loss), not $want" >&2; exit 1; }
        for header in $(cd "$source/include" && find heddle -name '*.h'); do
            echo "#include <$header>" | ${CXX:-c++} -std=c++$standard -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
                -I "$source/include" -x c++ - || { echo "$header does not compile as C++$standard" >&2; exit 1; }
        done
    done
fi
