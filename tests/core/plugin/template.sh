#!/bin/sh
# The template plugins, as a third party would build them: heddle is installed into an empty folder, the plugins are built
# in another from the installed headers alone, and the installed command uses them.
# usage: template.sh MESON BUILD_DIR TEMPLATE_DIR CONFORMANCE     CONFORMANCE: the suite for transports, tests/runtime/comm/test_transport
set -eu
meson=$1 build=$2 template=$3 conformance=$4
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
cp -r "$template" "$work/lion"
if command -v make >/dev/null; then
    make -s -C "$work/lion" CFLAGS="-O1 -Wall -Wextra -Werror" || fail "the template does not build"
fi

# The same through meson; a machine without make has only this one.
"$meson" setup "$work/lion/build" "$work/lion" --prefix "$work/prefix" --werror >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "meson setup"; }
ninja -C "$work/lion/build" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the template does not build with meson"; }
for plugin in heddle-optim-lion.so heddle-comm-pipes.so; do
    [ -e "$work/lion/$plugin" ] || cp "$work/lion/build/$plugin" "$work/lion/"
done

# The installed command finds its own plugins beside itself, and the new one through the environment.
unset HEDDLE_PLUGIN_PATH
expect "$("$heddle" plugins)" "AdamW"
if "$heddle" plugins optim-lion >"$work/out" 2>&1; then fail "optim-lion is there before it was installed"; fi
expect "$(HEDDLE_PLUGIN_PATH=$work/lion "$heddle" plugins optim-lion)" "usable: yes"

# The transport does all that transports must, in under 300 lines.
[ "$(wc -l <"$work/lion/pipes.c")" -lt 300 ] || fail "pipes.c has 300 lines or more"
"$conformance" pipes "$work/lion" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "comm-pipes does not pass the suite for transports"; }

# It trains: the loss of a small model falls from ln 256 within a few steps, on one rank and on two.
mkdir "$work/job"
cd "$work/job"
for i in 1 2 3 4 5 6 7 8; do echo "the warp and the weft are woven into one cloth, again and again."; done >text
cat >job.yaml <<'EOT'
job: {name: lion, steps: 20, seed: 3}
optimizer: {use: lion, lr: 2e-3}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4, shuffle: false}
EOT
for over in "1 shm" "2 shm" "2 pipes"; do
    ranks=${over% *} comm=${over#* }
    "$heddle" train job.yaml launch.ranks=$ranks comm.use=$comm 'strategies=[{use: zero, stage: 1}]' "plugins.path=[$work/lion]" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "training with optim-lion on $ranks ranks over $comm fails"; }
    last=$(sed -n 's/.*loss[": ]*\([0-9.]*\).*/\1/p' "$work/log" | tail -1)
    echo "$last" | awk '{ exit !($1 > 0 && $1 < 5) }' || { cat "$work/log" >&2; fail "the loss after 20 steps is '$last'"; }
done
cd /

# Beside heddle's own plugins it needs no environment; a second one elsewhere is a duplicate.
plugindir=$work/root$(pkg-config --variable=plugindir heddle | sed "s|^$work/root||")
if command -v make >/dev/null; then
    make -s -C "$work/lion" install plugindir="$plugindir" || fail "make install"
else
    cp "$work/lion/"heddle-*.so "$plugindir/"
fi
expect "$("$heddle" plugins optim-lion)" "usable: yes"
expect "$(HEDDLE_PLUGIN_PATH=$work/lion/build "$heddle" plugins optim-lion 2>&1)" "duplicate name"

# Every public header compiles by itself, without warnings and without hidden padding.
for header in $(cd "$work/root" && find . -path '*/include/heddle/*.h' | sed 's|.*/include/||'); do
    echo "#include <$header>" | ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Wpadded -Werror -fsyntax-only \
        $(pkg-config --cflags heddle) -x c - || fail "$header does not compile by itself"
done
