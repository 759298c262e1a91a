#!/usr/bin/env bash
# tests/gpu/go on the emulator: what runs in which call, what is left, a variant of the plugin, a kill, and a first call that fails.
#   go.sh TOP BUILD
set -u
top=$(realpath "$1") build=$(realpath "$2")
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
export GPU_DEVICE=cuda-emulated GPU_STATE=$work/state GPU_PLAN=$work/plan TMPDIR=$work

# A build like this one, of links, whose matmuls are a script that says which plugin it was given.
mkdir -p "$work/build/variants/other"
ln -s "$build/heddle" "$work/build/"
cp -rs "$build/plugins" "$work/build/"
cp "$build/plugins/device-cuda/tests/heddle-device-cuda-emulated.so" "$work/build/variants/other/"
products=$work/build/plugins/device-cuda/tests/bench_products
rm "$products"
printf '#!/bin/sh\nreadlink -f "$1" >>"%s"\necho no product >&2\nexit $(cat "%s")\n' "$work/given" "$work/code" >"$products"
chmod +x "$products"
# tests/gpu/products fails on what it prints, so a row is good where the stage is left out, and bad where it runs.
cat >"$GPU_PLAN" <<'PLAN'
1 first 60 GPU_ONLY=nothing
2 variant-@ 60 GPU_ONLY="products nothing" GPU_VARIANT=@
2 long 600 GPU_ONLY=nothing
3 named 60 GPU_ONLY=nothing
5 absent 60 GPU_ONLY=nothing GPU_VARIANT=absent
PLAN
echo 3 >"$work/code"

# goes NAME CODE WORD...: all words are in what it says.
goes() {
    local name=$1 code=$2 said
    shift 2
    # shellcheck disable=SC2086
    "$top/tests/gpu/go" "$work/build" ${calls:-} >"$work/said" 2>&1
    [ $? = "$code" ]
    verdict $? "$name: exit code $code: $(cat "$work/said")"
    for said in "$@"; do
        grep -q -e "$said" "$work/said"
        verdict $? "$name: it says '$said': $(cat "$work/said")"
    done
}
goes "two calls" 3 "^call 1, first: ok" "^call 2, variant-other: FAILED (exit 1)" "^call 5, absent: FAILED (exit 1)" "1 rows good, 2 bad, left: long$"
grep -q "^variant  other" "$work/state/variant-other/summary.txt" && [ "$(sort -u "$work/given")" = "$work/build/variants/other/heddle-device-cuda-emulated.so" ]
verdict $? "the variant was given: $(cat "$work/given")"
grep -q 'there is no .*/variants/absent/' "$work/state/absent/summary.txt"
verdict $? "a variant that is not there is named: $(cat "$work/state/absent/summary.txt")"

calls=3 goes "a call by its number" 1 "^call 3, named: ok" "2 rows good, 2 bad$"
GPU_CALL_SECONDS=5000 GPU_TOTAL_SECONDS=5000 goes "a longer call" 1 "^call 2, long: ok" "3 rows good, 2 bad$"
grep -q . "$work/state/spent"
verdict $? "the seconds spent are kept"

# A row that was killed runs once more, and no third time.
rm "$work/state/first.good"
goes "killed once" 1 "^call 1, first: ok"
rm "$work/state/first.good"
goes "killed twice" 1 "^[0-9]* of 8700 s spent; 2 rows good, 2 bad$"

# All is spent.
rm -rf "$work/state"
GPU_TOTAL_SECONDS=0 goes "nothing to spend" 3 "^0 of 0 s spent; 0 rows good, 0 bad, left: first variant-other long absent$"

# The first call has to be good.
sed -i 's/^1 first.*/1 first 60 GPU_ONLY=products/' "$GPU_PLAN"
goes "call 1 fails" 1 "^call 1, first: FAILED" "^call 1 failed: mend that first"
[ ! -e "$work/state/variant-other.begun" ]
verdict $? "nothing runs behind it"
sed -i 's/^1 first.*/1 first 60 GPU_ONLY=nothing/' "$GPU_PLAN"
OUT=$work/out goes "mended" 3 "^call 1, first: ok" "left: long$"
[ -e "$work/out/first.good" ] && [ -e "$work/out/spent" ] && [ -e "$work/out/variant-other/log.txt" ]
verdict $? "results and state go to \$OUT: $(ls "$work/out")"

"$top/tests/gpu/go" "$work/nowhere" >"$work/said" 2>&1
[ $? = 1 ] && grep -q "there is no heddle in $work/nowhere: tests/gpu/pack" "$work/said"
verdict $? "no build: $(cat "$work/said")"
finish
