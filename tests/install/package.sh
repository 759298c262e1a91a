#!/bin/sh
# tools/package-deb makes a package that depends on what a CPU needs and suggests the rest; what is in it trains.
# usage: package.sh SOURCE FOLDER     FOLDER: where the build of the package is kept. exit 77: no tools of Debian here
set -eu
source=$1 folder=$2
command -v dpkg-shlibdeps >/dev/null && command -v dpkg-deb >/dev/null || exit 77
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-package-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
fail() { echo "package: $*" >&2; exit 1; }

deb=$("$source/tools/package-deb" "$folder" | tail -1)
[ -s "$deb" ] || fail "no package was made"
depends=$(dpkg-deb -f "$deb" Depends) suggests=$(dpkg-deb -f "$deb" Suggests)
for library in libc6 libjansson4 libyaml-0-2 libssl3; do
    case $depends in *$library*) ;; *) fail "it does not depend on $library: $depends" ;; esac
done
case $depends in *libfabric* | *openmpi* | *cuda* | *nccl*) fail "it depends on a library of other transports or devices: $depends" ;; esac
dpkg-deb -x "$deb" "$work/root"
if find "$work/root" -name heddle-comm-mpi.so | grep -q .; then
    case $suggests in *openmpi*) ;; *) fail "comm-mpi is in it, and Open MPI is not suggested: $suggests" ;; esac
fi
for file in bin/heddle bin/heddle-test share/man/man1/heddle.1.gz share/bash-completion/completions/heddle share/zsh/site-functions/_heddle \
    share/doc/heddle/copyright share/heddle/templates/lion.c include/heddle/plugin.h; do
    [ -s "$work/root/usr/$file" ] || fail "usr/$file is not in it"
done

unset HEDDLE_PLUGIN_PATH
heddle=$work/root/usr/bin/heddle
cd "$work"
"$heddle" version
"$heddle" plugins optim-adamw | grep -q "^file $work/root/" || fail "its own plugins are not found"
for i in 1 2 3 4 5 6 7 8; do echo "the warp and the weft are woven into one cloth, again and again."; done >text
cat >job.yaml <<'EOT'
job: {name: tiny, steps: 2}
mesh: {dp: 2}
optimizer: {use: adamw, lr: 2e-3}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 4}
checkpoint: {}
EOT
"$heddle" train job.yaml | grep -q '^checkpoint: runs/tiny/checkpoints/step-00000002' || fail "it does not train"
"$heddle" test optim-sgd >/dev/null || fail "heddle test optim-sgd"
