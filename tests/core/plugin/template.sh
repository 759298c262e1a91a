#!/bin/sh
# The template plugins, as a third party would build them: heddle is installed into an empty folder, its templates are
# copied out and built from the installed headers alone, and the installed command uses and tests them.
# usage: template.sh MESON BUILD_DIR
set -eu
meson=$1 build=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-template-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

fail()
{
    echo "template: $*" >&2
    exit 1
}

expect()
{
    case $1 in
    *"$2"*) ;;
    *) fail "'$2' is not in: $1" ;;
    esac
}

"$meson" install -C "$build" --no-rebuild --destdir "$work/root" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "meson install failed"; }
pc=$(find "$work/root" -name heddle.pc)
heddle=$(find "$work/root" -type f -path '*/bin/heddle')
[ -n "$pc" ] || fail "heddle.pc is not installed"
[ -n "$heddle" ] || fail "the heddle command is not installed"

# Nothing but the installed tree: pkg-config sees one folder, and the copy lies outside the source tree.
PKG_CONFIG_LIBDIR=$(dirname "$pc")
PKG_CONFIG_SYSROOT_DIR=$work/root
export PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
installed() # VARIABLE: a folder of heddle.pc in the installed tree
{
    echo "$work/root$(pkg-config --variable="$1" heddle | sed "s|^$work/root||")"
}
templates=$(installed templates) plugindir=$(installed plugindir)
cp -r "$templates" "$work/mine"
if command -v make >/dev/null; then
    make -s -C "$work/mine" CFLAGS="-O1 -Wall -Wextra -Werror" || fail "the templates do not build"
fi

# The same through meson; a machine without make has only this one.
"$meson" setup "$work/mine/build" "$work/mine" --prefix "$work/prefix" --werror >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "meson setup"; }
ninja -C "$work/mine/build" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the templates do not build with meson"; }
for plugin in "$work/mine/build/"heddle-*.so; do
    [ -e "$work/mine/${plugin##*/}" ] || cp "$plugin" "$work/mine/"
done

# The installed command finds its own plugins beside itself, and new ones through the environment. Every template is usable.
unset HEDDLE_PLUGIN_PATH
expect "$("$heddle" plugins)" "AdamW"
if "$heddle" plugins optim-mylion >"$work/out" 2>&1; then fail "optim-mylion is there before it was installed"; fi
export HEDDLE_PLUGIN_PATH="$work/mine"
all=0
for source in "$work/mine/"*.c; do
    label=$(sed -n 's/^HD_PLUGIN("\([a-z-]*\)".*/\1/p' "$source")
    expect "$("$heddle" plugins "$label")" "usable: yes"
    all=$((all + 1))
done
[ "$all" -eq "$(ls "$work/mine/"*.so | wc -l)" ] || fail "$all templates, and $(ls "$work/mine/"*.so)"

# Each passes the test of its kind, by name and by path.
expect "$("$heddle" test optim-mylion)" " passed, 0 failed"
mkdir "$work/pairs"
for array in ids labels; do # 64 sequences of 8 zeros; the header of format 1.0 has 118 bytes
    { printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (64, 8), }"; head -c 2048 /dev/zero; } \
        >"$work/pairs/$array.npy"
done
printf 'chars\nabcdefghijklmnopqrstuvwxyz <|>' >"$work/chars"
for plugin in "$work/mine/"heddle-*.so; do
    case $plugin in
    *comm-pipes.so) words=few ;;
    *data-pattern.so) words=path=endless ;;
    *data-pairs.so) words=path=$work/pairs ;;
    *tokenizer-chars.so) words="path=$work/chars lossy token=<|end|>" ;;
    *metrics-lines.so) words=set:path=lines.txt ;;
    *model-neox.so) words="set:layers=2 set:hidden=32 set:heads=4 set:ffn=40 set:vocab=256" ;;
    *model-encoder.so) words="set:layers=2 set:hidden=32 set:heads=4 set:ffn=40 set:vocab=256 set:positions=16" ;;
    *) words= ;;
    esac
    "$heddle" test "$plugin" $words >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "heddle test $plugin"; }
    expect "$(tail -1 "$work/log")" " passed, 0 failed"
done
unset HEDDLE_PLUGIN_PATH

# The page shows the strategy that is installed.
sed -n '/^```c$/,/^```$/p' "$templates/../data-parallel.md" | sed '/^```/d' | cmp - "$templates/dp.c" || fail "data-parallel.md shows another dp.c"
expect "$("$heddle" version --json)" "\"abi\": \"$(pkg-config --variable=abi heddle)\""

# It trains: the loss of a small model falls from ln 256 within a few steps, on one rank and on two.
mkdir "$work/job"
cd "$work/job"
for i in 1 2 3 4 5 6 7 8; do echo "the warp and the weft are woven into one cloth, again and again."; done >text
cat >job.yaml <<'EOT'
job: {name: lion, steps: 20, seed: 3}
optimizer: {use: mylion, lr: 2e-3}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4, shuffle: false}
EOT
for over in "1 shm zero" "2 shm zero" "2 pipes zero" "2 pipes dp" "1 shm dp"; do
    set -- $over
    "$heddle" train job.yaml launch.ranks=$1 comm.use=$2 "strategies=[{use: $3}]" "plugins.path=[$work/mine]" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "training with optim-mylion on $1 ranks over $2 by $3 fails"; }
    last=$(sed -n 's/.*loss[": ]*\([0-9.]*\).*/\1/p' "$work/log" | tail -1)
    echo "$last" | awk '{ exit !($1 > 0 && $1 < 5) }' || { cat "$work/log" >&2; fail "the loss after 20 steps is '$last'"; }
done

# Data parallel trains like one rank, in other dtypes and with tied parameters too, and what it leaves out is refused.
for over in launch.ranks=1 launch.ranks=2 "launch.ranks=4 mesh.dp.replicate=2 mesh.dp.shard=2 data.micro_batch=2" "launch.ranks=2 precision.compute=bf16" \
    "launch.ranks=4 model.tied=true data.micro_batch=1" "launch.ranks=2 precision.compute=fp16 precision.loss_scale=1024"; do
    "$heddle" check --numerics job.yaml optimizer.use=adamw 'strategies=[{use: dp}]' "plugins.path=[$work/mine]" $over >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "strategy-dp does not train like one rank: $over"; }
done
"$heddle" check job.yaml 'strategies=[{use: dp}]' "plugins.path=[$work/mine]" launch.ranks=2 mesh.tp=2 >"$work/log" 2>&1 && fail "strategy-dp took mesh.tp"
expect "$(cat "$work/log")" "strategies.dp: it is for mesh.dp alone"

# A run that saves into folders goes on from them, on another mesh.
for over in "launch.ranks=2 job.steps=10 checkpoint.every=5" "launch.ranks=1"; do
    "$heddle" train job.yaml job.name=saved optimizer.use=adamw checkpoint.use=folders checkpoint.dir=saved 'strategies=[{use: dp}]' \
        "plugins.path=[$work/mine]" $over >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "training with ckpt-folders: $over"; }
done
expect "$(cat "$work/log")" "step 20/20"
grep -q "step 10/20" "$work/log" && fail "the resumed run began anew"
cd /

# Beside heddle's own plugins it needs no environment; a second one elsewhere is a duplicate.
if command -v make >/dev/null; then
    make -s -C "$work/mine" install plugindir="$plugindir" || fail "make install"
else
    cp "$work/mine/"heddle-*.so "$plugindir/"
fi
expect "$("$heddle" plugins optim-mylion)" "usable: yes"
expect "$(HEDDLE_PLUGIN_PATH=$work/mine/build "$heddle" plugins optim-mylion 2>&1)" "duplicate name"

# Every public header compiles by itself, without warnings and without hidden padding.
for header in $(cd "$work/root" && find . -path '*/include/heddle/*.h' | sed 's|.*/include/||'); do
    echo "#include <$header>" | ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Wpadded -Werror -fsyntax-only \
        $(pkg-config --cflags heddle) -x c - || fail "$header does not compile by itself"
done
