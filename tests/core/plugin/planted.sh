#!/bin/sh
# Faults planted in the templates: `heddle test` finds each, by the check that it is a fault of; and what it is not given is refused.
# usage: planted.sh HEDDLE SOURCE     SOURCE: top of the tree
set -eu
heddle=$(realpath "$1") source=$(realpath "$2")
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-planted-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"

# plant FILE KIND-NAME EDIT WORDS CHECK: with the edit (sed), the checks that WORDS pick fail, CHECK among them; without it none does.
plant()
{
    sed "$3" "$source/examples/plugin-template/$1" >planted.c
    if cmp -s planted.c "$source/examples/plugin-template/$1"; then echo "$1: '$3' edits nothing" >&2; exit 1; fi
    ${CC:-cc} -std=gnu11 -w -O0 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared -I "$source/include" -o "heddle-$2.so" planted.c -lm
    got=0
    "$heddle" test "./heddle-$2.so" $4 >log 2>&1 || got=$?
    [ $got -eq 1 ] || { cat log >&2; echo "$1 with '$3': exit $got instead of 1" >&2; exit 1; }
    grep -q "^FAILED  $5" log || { cat log >&2; echo "$1 with '$3': '$5' did not fail" >&2; exit 1; }
    tail -1 log | grep -q '^[0-9]* passed, [1-9][0-9]* failed$' || { cat log >&2; echo "no count of what failed" >&2; exit 1; }
}

# refused CODE TEXT ARGUMENTS...
refused()
{
    code=$1 text=$2 got=0
    shift 2
    "$heddle" test "$@" >log 2>&1 || got=$?
    [ $got -eq "$code" ] || { cat log >&2; echo "heddle test $*: exit $got instead of $code" >&2; exit 1; }
    grep -qF -- "$text" log || { cat log >&2; echo "heddle test $*: '$text' is not said" >&2; exit 1; }
}

plant lion.c optim-mylion 's/a->state\[0\]\[i\]/kept[i]/g; s/^static double sign/static float kept[1 << 20];\n&/' only=a "parameters and states are all there is"
plant lion.c optim-mylion 's/a->state\[0\]\[i\]/kept[i]/g; s/^static double sign/static float kept[1 << 20];\n&/' only=cut "any cut"
plant lion.c optim-mylion 's/a->norm2 \* inv_scale \* inv_scale/a->norm2/' only=scale "a loss scale"
crashes='(heddle test|heddle) crashed: [A-Z][a-z ]* (in|in a call from) plugin [a-z]*-[a-z]* \(.*\.so\)$|Sanitizer'
plant lion.c optim-mylion 's/a->param\[i\] = /((float *)8)[i] = /' only=moves "a step moves"
grep -qE "$crashes" log || { cat log >&2; exit 1; }
plant lion.c optim-mylion 's/^static double sign/#include <stdlib.h>\n&/; s/a->param\[i\] = /exit(0), &/' only=moves "a step moves"
grep -qE "heddle test was ended by exit\(0\) in a call from plugin optim-mylion \(.*: a plug-in returns an error|Sanitizer" log
plant lion.c optim-mylion 's/lr = a->hyper\[HD_HYPER_LR\]/lr = s->lr/' only=rate "the rate is that of hyper"
plant lion.c optim-mylion '/hd_update_runs/,+1d' only=overflow "overflow and skip"
plant lion.c optim-mylion 's/a->param\[i\] = /a->param[i + 1] = /' only=moves "a step moves"
plant lion.c optim-mylion 's/hd_clip_factor(.*)/1/' only=clipping "clipping"
plant lion.c optim-mylion 's/return HD_OK;$/return a->hyper[HD_HYPER_STEP] > 4 ? hd_fail(a->err, HD_E_IO, "no more") : HD_OK;/' only=whole "whole jobs"
plant lion.c optim-mylion 's/{"exp_avg"}/{"exp avg"}/' only=slots "slots answer"
plant lion.c optim-mylion 's/(float)(s->beta2 \* m + (1 - s->beta2) \* g)/sqrtf(&)/' only=moves "a step moves"
for forgets in 's/.*\.decay = .*//' 's/ + decay \* p//' 's/return ((const.*->lr;/return 1e-4;/' '/weight_decay",/,/min/ { s/"1.0"/"1"/; s/FLOAT/INT/ }'; do
    plant lion.c optim-mylion "$forgets" only=effect "options have an effect"
done
plant folders.c ckpt-folders 's|%s/.new-%s", c->dir, name);$|%s/%s", c->dir, name);|' only=cancel "cancel"
plant folders.c ckpt-folders 's/again ? renameat2([^)]*) :/(again \&\& remove_folder(path), again = 0) ? 0 :/' only=killed "killed at each system call, 1"
plant folders.c ckpt-folders 's/return rename(path, aside) || remove_folder(aside)/return remove_folder(path)/' only=killed "killed at each system call, 2"
plant folders.c ckpt-folders '/^        remove_folder(t->folder);/d' only=killed "killed between calls"
plant folders.c ckpt-folders 's/if (n == 0)/if (n == 0 \&\& (bytes = 0, 1))\n;else if (0)/' only=not "what is not there"
plant folders.c ckpt-folders 's/if (n == 0)/if (n == 0 \&\& (bytes = 0, 1))\n;else if (0)/' only=damaged "damaged objects"
plant folders.c ckpt-folders 's/O_WRONLY | O_CREAT,/O_WRONLY | O_CREAT | O_TRUNC,/' only=ranges "ranges of several ranks"
plant folders.c ckpt-folders 's/bytes -= (uint64_t)n, offset/bytes = 0, offset/' only=full "a full disk"
plant pipes.c comm-pipes 's/memcpy(m->data, came->data, m->header.bytes)/memcpy(m->data, came->data, m->header.bytes - 1)/' only=messages "messages arrive"
plant pipes.c comm-pipes 's/take(l, CAME, &came->header); .*/take(l, CAME, NULL);/' only=random "random operations"
plant pipes.c comm-pipes 's/{.bad = ABORTED}/{.bad = MISMATCH}/' only=thread "abort from a thread"
plant dp.c strategy-dp 's/if (api->live_axes(p))$/if (0)/' only=two "two ranks of data"
plant dp.c strategy-dp '/HD_OP_FILL0/d' only=two "two ranks of data"
plant dp.c strategy-dp '/api->update(p, flat, low);/d' only=two "two ranks of data"
plant dp.c strategy-dp 's/f.offset\[k\], param.count, 1/0, k ? 0 : f.count, 1/' "only=random draws=24" "jobs drawn at random"
plant dp.c strategy-dp 's/param.count, 1}/param.count - 1, 1}/' only=two "two ranks of data"
plant dp.c strategy-dp 's/ || api->axis_size(p, HD_AXIS_PP) > 1//' "only=random draws=24" "jobs drawn at random"
plant dp.c strategy-dp 's/api->live_axes(p) & ~dp/0/' "only=random draws=24" "jobs drawn at random"
plant dp.c strategy-dp '/if (low)/,+1d' "only=random draws=24" "jobs drawn at random"
plant dp.c strategy-dp 's/"G", api->dtype(p, "grad")/"G", HD_F32/' "only=random draws=24" "jobs drawn at random"
plant dp.c strategy-dp 's/struct hd_pass_flat f;/if (!access("saved-before", 0)) return host->free(all), host->free(ranges), HD_E_IO; close(creat("saved-before", 0600)); &/' only=resumed "a resumed job"
grep -qF "its plugin failed without a message" log || { cat log >&2; exit 1; }
plant ../../tests/plugins/onebit.c strategy-onebit '/put(x, HD_OP_ALL_TO_ALL/d' only=two "two ranks of data"
onebit=../../tests/plugins/onebit.c topk=../../tests/plugins/topk.c ops="custom ops compute what their tables say, 0"
plant $onebit strategy-onebit 's/g\[i\] + e\[i\]/g[i] - e[i]/' only=custom "$ops"
grep -qE "custom op sign_decode .* on rank 0 of 2, given plain numbers: output 0, GS.0, element 0 is .* and should be" log
plant $onebit strategy-onebit 's/y\[i\] += code\(.*\)? scale : -scale/y[i] += code\1? scale \/ 2 : -scale \/ 2/' only=custom "$ops"
plant $onebit strategy-onebit 's/e\[i\] -= positive.*/e[i] = 0;/' only=custom "$ops"
plant $onebit strategy-onebit 's/memset(codes, 0, \(.*\));/memset(codes, 0, \1 + 64);/' only=custom "$ops"
grep -qF "it writes byte 1 behind the end of output 0, c.0" log
plant $onebit strategy-onebit 's/^    memset(y, 0.*//' only=custom "$ops"
plant $onebit strategy-onebit 's/^    uint8_t \*codes = /((float *)d->in[0].data)[3] = 1;&/' only=custom "$ops"
plant $onebit strategy-onebit 's/^    scale = n .*/&if (scale != scale) *(volatile int *)8 = 1;/' only=custom "$ops"
grep -qE "sign_encode .* given NaN and infinities, has crashed: .* in plugin strategy-onebit \(.*\.so\)|Sanitizer" log
plant $onebit strategy-onebit 's/(float)(sum \/ (double)n)/(float)sum/' only=custom "$ops"
grep -qF "it leaves an error of norm" log || { cat log >&2; exit 1; }
halves=../../tests/plugins/halves.c
plant $halves strategy-halves 's/x\[i\] \/ 2;/x[i] \/ 2 + 1;/' only=custom "$ops"
plant $halves strategy-halves 's/x\[i\] \/ 2;/x[i] < 0 ? 0 : x[i];/' only=custom "$ops"
plant $halves strategy-halves 's/2 \* x\[i\];/2 * x[i] - x[0];/' only=custom "$ops"
plant $topk strategy-topk 's/e\[i\] = 0;//' only=custom "$ops"
plant $topk strategy-topk 's/equal-- <= 0/equal-- < 0/' only=custom "$ops"
sizes="set:layers=2 set:hidden=32 set:heads=4 set:ffn=40 set:vocab=256"
plant neox.c model-neox 's/info->layers = s->layers/info->layers = 1/' "$sizes only=info" "info is what is built"
plant neox.c model-neox 's/settings->eps};/settings->eps * ++builds};/; s/^struct emit {/static int builds;\n&/' "$sizes only=again" "it builds the same again"
plant neox.c model-neox 's/e.api->block(p, block);/if (e.layer == 0) e.api->block(p, "L0");/' "$sizes only=info" "info is what is built"
plant neox.c model-neox 's/^    e.api->block(p, "embed");/    if (e.api->input(p, "positions")) e.api->dim(p, 90, "none", 0);\n&/' "$sizes only=documents" \
    "numbers are those of one rank, dp: 2, documents: mask"
for says in 's/"hidden_size\\": %lld/"hidden_size\\": 2%lld/' 's/"num_hidden_layers\\": %lld/"num_hidden_layers\\": 1%lld/'; do
    plant neox.c model-neox "$says" "$sizes only=config" "config json is that of info"
done
cat >job.yaml <<end
job: {name: crash, steps: 1}
model: {use: neox, layers: 2, hidden: 32, heads: 4, ffn: 40, vocab: 256}
optimizer: {use: sgd, lr: 1e-3}
data: {train: text, format: bytes, seq_len: 8, batch: 8}
plugins: {path: [$work]}
end
cp planted.c text
"$heddle" train job.yaml checkpoint.dir=said >log 2>&1 && "$heddle" ckpt export job.yaml checkpoint.dir=said --to told >>log 2>&1 &&
    grep -qF "told/config.json: model-neox writes num_hidden_layers 12, and its \`info\` says 2: correct its config_json" log || { cat log >&2; exit 1; }
plant neox.c model-neox 's/e.api->block(p, block);/((void (*)(void))0)();/' "$sizes only=again" "it builds the same again"
grep -qE "$crashes" log || { cat log >&2; exit 1; }
# A constructor runs before there is a plug-in to name.
sed 's/^static double sign/__attribute__((constructor)) static void begin(void) { *(volatile char *)8 = 0; }\n&/' "$source/examples/plugin-template/lion.c" >planted.c
${CC:-cc} -std=gnu11 -w -O0 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared -I "$source/include" -o heddle-optim-mylion.so planted.c -lm
"$heddle" test ./heddle-optim-mylion.so >log 2>&1 && { echo "a crash in a constructor passes" >&2; exit 1; }
grep -qE "heddle test crashed: Segmentation fault in a call from a constructor of .*/heddle-optim-mylion.so$|Sanitizer" log || { cat log >&2; exit 1; }

# Ring attention has sequences in zig-zag order, and a parameter along them has not.
sed 's/HD_OP_POSITION/HD_OP_BIAS/; s/"ph"/"sh"/; /dim(p, .p./d' "$source/examples/plugin-template/encoder.c" >planted.c
${CC:-cc} -std=gnu11 -w -O0 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared -I "$source/include" -o heddle-model-encoder.so planted.c -lm
"$heddle" test ./heddle-model-encoder.so set:layers=1 set:hidden=32 set:heads=4 set:ffn=40 set:vocab=256 set:positions=8 only="cp: 2" >log 2>&1 &&
    grep -qF "parameter distilbert.embeddings.position_embeddings.weight has dim s, the sequence: use context: ulysses" log ||
    { cat log >&2; exit 1; }
"$heddle" check job.yaml >log 2>&1 && { echo "a model that crashes passes check" >&2; exit 1; }
grep -qE "$crashes" log || { cat log >&2; exit 1; }
plant plain.c device-plain 's/0.044715/0.0447/' only=gelu "kernel gelu"
plant plain.c device-plain 's/(d->attrs.flags & HD_ATTR_ACCUMULATE)/0/' only=projection "kernel projection"
plant plain.c device-plain 's/sum += get(&k->in\[n\], i);/sum += get(\&k->in[n], i), ((char *)k->in[0].data)[0] = 1;/' only=add "kernel add"
plant plain.c device-plain 's/i < hd_operand_count(&k->out\[0\]); i++)$/i <= hd_operand_count(\&k->out[0]); i++)/' only=fill0 "kernel fill0"
plant plain.c device-plain 's|if (n == sizeof table / sizeof \*table)|if (n > 5) return HD_E_UNSUPPORTED; &|' only=refused "what it does not have"
plant plain.c device-plain 's/    (void)device;$/    if (!device) return 0;/' only=supports "supports the same"
plant pattern.c data-pattern 's/first + i/i/' "path=endless only=ranges" "ranges give the same"
printf 'chars\nabcdefghijklmnopqrstuvwxyz <|>' >chars
plant chars.c tokenizer-chars 's/t->bytes\[t->ids\[c\] = t->count++\]/t->bytes[(t->ids[c] = t->count++) | 1]/' "path=chars lossy only=texts" "texts come back"
plant chars.c tokenizer-chars 's/if (id < 0)$/static int64_t calls; if (calls++ % 100000 == 99999) id = 0;&/' "path=chars lossy only=threads" "threads encode at once"
plant chars.c tokenizer-chars 's/ids\[i\] < 0 || ids\[i\] > t->count/ids[i] < 0/' "path=chars lossy only=outside" "ids outside are refused"
plant chars.c tokenizer-chars 's/(flags & HD_TOKENIZER_SPECIAL) && //' "path=chars lossy only=special token=<|end|>" "special tokens are found"
plant chars.c tokenizer-chars 's/!(flags & HD_TOKENIZER_SKIP_SPECIAL)/1/' "path=chars lossy only=special token=<|end|>" "special tokens are found"
plant chars.c tokenizer-chars 's/info->struct_size < sizeof all/0/' "path=chars lossy only=info" "info is of the vocabulary"
plant chars.c tokenizer-chars 's/, -1, t->count, -1, -1}/}/' "path=chars lossy only=info" "info is of the vocabulary"
plant chars.c tokenizer-chars 's/HD_E_UNSUPPORTED, "%s: no list/HD_E_INVALID, "%s: no list/' "path=chars lossy only=refused" "what is no tokenizer"
plant count.c hook-count 's/return HD_OK;/return HD_E_IO;/' only=job "a job trains what"
for ends in '*e = (t / 100 + 1) * 100' '*e = t + 50 < l ? t + 50 : l' '*e = l < 99 ? l : 99'; do # no limit; of each token another; behind
    plant pattern.c data-pattern "s|^static const struct hd_data_ops|static int32_t ends(struct hd_data *d, uint64_t t, uint64_t l, uint64_t *e, struct hd_error *r)\n{ $ends; return HD_OK; }\n&|; s/\.check = check,/& .document_end = ends,/" \
        "path=endless only=documents" "documents have one end"
done
plant lines.c metrics-lines 's/hd_metric_at(record, i)/\&record->metrics[i]/' "set:path=lines.txt only=any" "any record"
plant lines.c metrics-lines 's/start->step ? "a" : //' "set:path=lines.txt only=again" "a run may be opened again"

# A plug-in that crashes is a failed check, and the others run. Sanitizers would make an exit code of the signal.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0 TSAN_OPTIONS=${TSAN_OPTIONS:-}:handle_segv=0
export ASAN_OPTIONS TSAN_OPTIONS
plant lion.c optim-mylion 's/a->param\[i\] = .*/*(volatile char *)0 = 0;/' only=s "any cut gives the same bits: ended by signal 11"
grep -q '^ok      slots answer' log || { cat log >&2; exit 1; }

refused 2 "which plugin?"
refused 2 "'lion' is no plugin" lion
refused 2 "there is no plugin optim-lino" optim-lino
refused 2 "say path=PATH" data-tokens
refused 2 "option dir has no default" metrics-tensorboard
refused 2 "not understood" strategy-zero soak=3
refused 2 "there is no such file" ./heddle-optim-none.so
refused 2 "a plugin's file is called heddle-KIND-NAME.so" ./planted.c.so
refused 2 "'table' is not understood: what optim takes is set:KEY=VALUE (" optim-lion table
refused 2 "'few' is not understood: what device takes is set:KEY=VALUE, table (" device-cpu few
refused 2 "'soak=3' is not understood" optim-adamw soak=3
refused 2 "has no option 'speed'" optim-adamw set:speed=3
refused 2 "set:KEY=VALUE" optim-adamw set:lr=quick
refused 2 "has no option 'speed'" optim-adamw $(printf 'set:lr=1e-3 %.0s' $(seq 40)) set:speed=3
refused 1 "no check of optim-adamw has 'xyzzy'" optim-adamw only=xyzzy
touch heddle-optim-empty.so
refused 1 "cannot be loaded" ./heddle-optim-empty.so

# Paths of options are those of the folder in which it is called.
cat >job.yaml <<'EOF'
job: {steps: 1}
optimizer: {use: adamw, lr: 1e-3}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, ffn: 64, vocab: 256}
data: {train: planted.c, format: bytes, seq_len: 16, batch: 4}
checkpoint: {dir: saved}
EOF
"$heddle" train job.yaml >log 2>&1 && "$heddle" ckpt export job.yaml --to exported >>log 2>&1 || { cat log >&2; exit 1; }
refused 0 "1 passed, 0 failed" model-transformer set:from=exported "only=goes on"

# Who ends `heddle test` ends the check that runs.
sed 's/^static double sign/#include <stdio.h>\n#include <unistd.h>\n&/; s|^    if (!hd_update_runs.*|    FILE *f = fopen("pid.new", "w");\n    if (f \&\& fprintf(f, "%d", getpid()) \&\& !fclose(f) \&\& !rename("pid.new", "pid"))\n        for (;;)\n            pause();\n&|' "$source/examples/plugin-template/lion.c" >planted.c
${CC:-cc} -std=gnu11 -w -O0 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared -I "$source/include" -o heddle-optim-mylion.so planted.c -lm
"$heddle" test ./heddle-optim-mylion.so only=moves >log 2>&1 &
while kill -0 $! && [ ! -s pid ]; do sleep 0.05; done
kill $!
wait $! 2>/dev/null && { echo "heddle test that was ended says 0" >&2; exit 1; }
if kill -0 "$(cat pid)" 2>/dev/null; then echo "the check outlives heddle test" >&2; exit 1; fi
