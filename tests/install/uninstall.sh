#!/bin/sh
# meson install puts heddle into a folder, where it runs; ninja uninstall leaves nothing of it there.
# usage: uninstall.sh MESON BUILD
set -eu
meson=$1 build=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-uninstall-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
fail() { echo "uninstall: $*" >&2; exit 1; }

"$meson" install -C "$build" --no-rebuild --destdir "$work/root" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "meson install failed"; }
heddle=$(find "$work/root" -type f -path '*/bin/heddle')
[ -n "$heddle" ] || fail "the heddle command is not installed"
"$heddle" version >/dev/null || fail "the installed command does not run"
"$heddle" plugins optim-adamw | grep -q "^file $work/root/.*usable: yes\|^usable: yes" || fail "the installed plugins are not found"
for file in man/man1/heddle.1 bash-completion/completions/heddle zsh/site-functions/_heddle heddle/templates/lion.c; do
    [ -s "${heddle%/bin/heddle}/share/$file" ] || fail "share/$file is not installed"
done
ninja -C "$build" uninstall >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "ninja uninstall failed"; }
left=$(find "$work/root" -mindepth 1 2>/dev/null || true)
[ -z "$left" ] || fail "ninja uninstall leaves: $left"
