#!/usr/bin/env bash
# tests/gpu/run on the emulator: what it says and how it ends where all is good, where a part fails, where time is up, and where there is no
# GPU; and tests/gpu/bench beside an llm.c.   run.sh TOP BUILD
set -u
top=$(realpath "$1") build=$(realpath "$2")
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"
export GPU_DEVICE=cuda-emulated

# A build like this one, of links.
mkdir "$work/build"
ln -s "$build/heddle" "$work/build/"
cp -rs "$build/plugins" "$work/build/"

# ends NAME CODE WORD...: runs the stage products, or $stage; all words are in the summary that it leaves.
ends() {
    local name=$1 code=$2 said
    shift 2
    rm -rf "$work/out"
    OUT=$work/out GPU_ONLY=${stage:-products} "$top/tests/gpu/run" "$work/build" >"$work/said" 2>&1
    [ $? = "$code" ]
    verdict $? "$name: exit code $code: $(tail -5 "$work/said")"
    for said in "$@"; do
        grep -q -e "$said" "$work/out/summary.txt"
        verdict $? "$name: the summary says '$said': $(cat "$work/out/summary.txt")"
    done
}
ends "all good" 0 "^ok  *products" "TFLOP/s" "^1 stages good, 0 bad, [1-9][0-9]* left out; wanted: 0 held, 0 missed, [1-9][0-9]* not measured" \
    "^wanted .*: not measured"
grep -q '==== products' "$work/out/log.txt"
verdict $? "the log has what stages printed"

GPU_SECONDS=1 ends "no time" 1 "^no time  products" "^0 stages good, 1 bad"
stage=bench GPU_SECONDS=18 ends "no time for a model" 0 "^1 stages good, 0 bad, [1-9]" "^left out tiny: GPU_ONLY=bench GPU_MODELS=\"tiny\" tests/gpu/run"
HEDDLE_EMULATE_DEVICES=0 ends "no GPU" 1 "no  *plugin device-cuda-emulated cannot be used" "cannot be used here: nothing was run"

rm "$work/build/plugins/device-cuda/tests/bench_products"
printf '#!/bin/sh\necho no product today >&2\nexit 3\n' >"$work/build/plugins/device-cuda/tests/bench_products"
chmod +x "$work/build/plugins/device-cuda/tests/bench_products"
ends "a part fails" 1 "^FAILED  *products (exit 1" "no product today" "^0 stages good, 1 bad"

# A command on a lent machine is killed with all that it started: what ended before is in the log.
printf '#!/bin/sh\nexec sleep 100\n' >"$work/build/plugins/device-cuda/tests/bench_products"
rm -rf "$work/out"
TMPDIR=$work OUT=$work/out GPU_ONLY="attention products" setsid "$top/tests/gpu/run" "$work/build" >"$work/said" 2>&1 &
killed=$!
for _ in $(seq 600); do
    grep -q '^ok  *attention' "$work/out/summary.txt" 2>/dev/null && break
    sleep 0.1
done
kill -KILL -- -$killed
wait $killed 2>/dev/null
grep -q '==== attention' "$work/out/log.txt" && grep -q 'TFLOP/s' "$work/out/log.txt"
verdict $? "killed: the log has the stage that ended: $(cat "$work/out/summary.txt" "$work/out/log.txt")"

# An llm.c that asks for what the real one needs and prints its lines: 32 tokens in 2 ms.
mkdir "$work/llm.c"
cat >"$work/llm.c/train_gpt2cu" <<'PEER'
#!/usr/bin/env python3
import array, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
data = open(words["-i"], "rb").read()
magic, version, tokens = array.array("i", data[:12])
assert (magic, version, 1024 + 2 * tokens) == (20240520, 1, len(data)) and int(words["-v"]) and int(words["-d"]) == int(words["-b"]) * int(words["-t"])
print("device memory usage: 3 MiB / 100 MiB")
for step in range(int(words["-x"])):
    print(f"step {step + 1:4}/{words['-x']} | loss 5.54 (+nanz)| norm 1.5 (+nanz)| lr 3.00e-04 | 2.00 ms | 1.0% bf16 MFU | 1 tok/s")
PEER
chmod +x "$work/llm.c/train_gpt2cu"
# A driver that counts 1000 MiB, and 1512 at most while something runs.
mkdir "$work/bin"
cat >"$work/bin/nvidia-smi" <<'DRIVER'
#!/bin/sh
case $* in
*--loop-ms*) for used in 1000 1300 1512 1400; do echo $used; done; exec sleep 60 ;;
*) echo 1000 ;;
esac
DRIVER
chmod +x "$work/bin/nvidia-smi"
PATH=$work/bin:$PATH HEDDLE_PLUGIN_PATH=$build/plugins/device-cuda/tests python3 "$top/tests/gpu/bench" --heddle "$build/heddle" --device cuda-emulated --models tiny --no-peer \
    --llmc "$work/llm.c" >"$work/said" 2>&1
verdict $? "tests/gpu/bench: $(cat "$work/said")"
for said in '^ceiling  *product bf16, GFLOP/s: 8192$' '^tiny  *heddle .* tokens/s,  *0.50 GiB (itself: .*), MFU [0-9.]* % of 8.192 (datasheet)$' '^tiny  *llm.c  *16000 tokens/s,  *0.50 GiB (itself: 0.00).* 1.00 x memory' \
    'one step and out' 'arena: \([0-9]*\) bytes planned, \1 used$' "^wanted  *tiny: tokens/s over llm.c's: 0.*, at least 1.1: MISSED" \
    "^wanted  *tiny: tokens/s over torch.compile's: at least 1.1: not measured" '^wanted  *tiny: seconds of one step and out: .*, at most 5: held'; do
    grep -q -e "$said" "$work/said"
    verdict $? "tests/gpu/bench says '$said': $(cat "$work/said")"
done

# What bench/kernels prints, judged.
{
    printf '%-22s %9.1f us %9.1f MB %8.1f GB/s\n' copy 1 2 3
    printf '%-22s %9.1f us %9.1f MB %8.1f GB/s  %5.2f of a copy\n' 'rmsnorm, 2048' 1 2 3 0.84 add 1 2 3 0.85
} >"$work/kernels"
[ "$(python3 "$top/tests/gpu/wanted.py" "$work/kernels" | sed 's/.*: //' | xargs)" = "MISSED held" ]
verdict $? "kernels: $(python3 "$top/tests/gpu/wanted.py" "$work/kernels")"

finish
