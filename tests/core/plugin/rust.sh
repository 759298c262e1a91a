#!/bin/sh
# A plugin in Rust, without crates: it loads, passes the tests of optimizers and trains.
# usage: rust.sh HEDDLE SOURCE     SOURCE: top of the tree. Exit 77: there is no rustc
set -eu
heddle=$(realpath "$1") source=$2
command -v "${RUSTC:-rustc}" >/dev/null 2>&1 || { echo "no rustc: the plugin in Rust was not built; Debian's package is rustc, or set RUSTC"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-rust-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"
"${RUSTC:-rustc}" --edition 2021 --crate-type cdylib -O -C panic=abort -D warnings -o heddle-optim-rust.so "$source/tests/core/plugin/momentum.rs"
"$heddle" test ./heddle-optim-rust.so >log 2>&1 || { cat log >&2; exit 1; }
tail -1 log | grep -q "^13 passed, 0 failed$" || { cat log >&2; exit 1; }
HEDDLE_PLUGIN_PATH=$work "$heddle" plugins optim-rust >log
grep -q "usable: yes" log || { cat log >&2; exit 1; }
