/* Jobs that run, and get a line of warning: values without effect, that are hardly meant, or that the machine cannot
 * serve well. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/cpu/parallel_for.h"
#include "tests/system/system.h"

#define TOKENIZER GOLDEN_DIR "/indexed/tokenizer.json"
#define QWEN_FILE GOLDEN_DIR "/tokenizer/qwen2.json"
#define TALK "model.vocab=1024 data.tokenizer=" QWEN_FILE " data.chat_template=chatml data.loss=completion "
#define QWEN "llama.yaml model.vocab=1024 --random-weights --max-new 1 --tokenizer " QWEN_FILE " "

/* low.txt has 1000 bytes. */
#define MIX(corpus, low)                                           \
    "data.train=[{\"path\":\"corpus.txt\",\"weight\":" corpus "}," \
    "{\"path\":\"low.txt\",\"weight\":" low "}] "

#define PAIRS "plugins.path=[\"" ASYNC "\"] data.use=pairs data.train="
#define BY_PIPES "plugins.path=" PIPES " comm.use=pipes "

static const struct {
    const char *words, *want;
} warned[] = {
    {"train llama.yaml --dry-run data.http_timeout=5s",
     "warning: command line: data.http_timeout has no effect, because no file is a URL: leave it out"},
    {"train llama.yaml --dry-run data.http_retries=2",
     "warning: command line: data.http_retries has no effect, because no file is a URL: leave it out"},
    {"train llama.yaml --dry-run data.val_fraction=0.1 eval.every=1 eval.batches=1000000",
     "command line: eval.batches: 1000000 batches of data.batch sequences are more than the "},
    {"train llama.yaml --dry-run strategies.zero.prefetch=2",
     "command line: warning: strategies.zero.prefetch has no effect where strategies.zero.stage is "},
    {"explain llama.yaml optimizer.rounding_seed=2",
     "command line: warning: optimizer.rounding_seed has no effect where optimizer.rounding is nearest: leave it "
     "out, or say optimizer.rounding=stochastic"},
    {"train llama.yaml --dry-run launch.margin=10s",
     "command line: warning: launch.margin has no effect outside Slurm, because launch.time_limit is not set"},
    {"train llama.yaml --dry-run optimizer.lr=0", "command line: warning: optimizer.lr is 0: no parameter changes"},
    {"train llama.yaml --dry-run data.val_fraction=0.1 eval.every=21",
     "command line: warning: eval.every is above job.steps: nothing is evaluated"},
    {"train llama.yaml --dry-run data.val=[\"low.txt\",\"high.txt\"] eval.every=2 eval.batches=1",
     "command line: eval.batches: an evaluation reads only the first 8 of 62 sequences, none of which is of high.txt: "
     "raise eval.batches to 8, or evaluate each file by itself: data.val: {A: FILE, B: FILE}"},
    {"train llama.yaml --dry-run model.vocab=1024 data.train=toks/stale.bin",
     "warning: toks/stale.bin: its .meta.json is of "},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=gpt2 data.train=" GOLDEN_DIR "/indexed/bpe.bin",
     "warning: command line: data.tokenizer: there is no file gpt2: training on tokens does not need it, but "
     "`heddle sample` and `heddle ckpt export` do"},
    {"data merge toks/stale toks/a --to toks/merged",
     "so it is not known which tokenizer made the tokens: write both again, or remove that"},
    {"data merge toks/ends toks/none --to toks/mixed",
     "warning: documents of toks/ends have id 0 appended, and those of toks/none have no id (--append-eod): tokenize "
     "the text of one of them again"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=[\"toks/none.bin\",\"toks/ends.bin\"]",
     "warning: command line: data.train: documents of toks/ends.bin have id 0 appended, and those of data.train, "
     "toks/none.bin, have no id (--append-eod)"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=toks/ends.bin data.val=toks/none.bin eval.every=2",
     "warning: command line: data.val: documents of toks/none.bin have no id appended, and those of data.train, "
     "toks/ends.bin, have id 0 (--append-eod)"},
    {"train llama.yaml --dry-run data.val=[\"low.txt\",\"./corpus.txt\"] eval.every=2",
     "warning: command line: data.val: ./corpus.txt is a file that data.train has, too: it is not held out"},
    {"train llama.yaml --dry-run data.train=shards/ data.val=shards/a.bin data.format=bytes eval.every=2",
     "warning: command line: data.val: shards/a.bin is a file that data.train has, too: it is not held out"},
    {"train llama.yaml --dry-run data.test=corpus.txt",
     "warning: command line: data.test: corpus.txt is a file that data.train has, too: it is not held out"},
    {"train llama.yaml --dry-run data.val={\"a\":\"low.txt\",\"b\":\"./low.txt\"} eval.every=2",
     "warning: command line: data.val.b: ./low.txt is a file that data.val.a has, too: val_loss counts it twice"},
    {"train llama.yaml --dry-run data.val=low.txt data.test=low.txt eval.every=2",
     "warning: command line: data.test: low.txt is a file that data.val has, too: the test is on what was"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=texts data.val=texts/b.txt",
     "warning: command line: data.val: texts/b.txt is a file that data.train has, too: it is not held out"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=te?ts/*.txt "
     "data.val=texts/b.txt",
     "warning: command line: data.val: texts/b.txt is a file that data.train has, too: it is not held out"},
    {"eval llama.yaml --random-weights eval.batches=1 data.test=corpus.txt --split test",
     "warning: command line: data.test: corpus.txt is a file that data.train has, too: it is not held out"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies.zero.stage=3 strategies.zero.offload.params=host",
     "command line: warning: strategies.zero.offload.params: device cpu computes in host memory, so this saves none: "
     "leave it out"},
    {"train llama.yaml --dry-run optimizer.lr=3",
     "command line: warning: optimizer.lr is 3: each weight moves by about as much in a step: 1e-5 to 1e-2 are usual"},
    {"train llama.yaml --dry-run optimizer.use=adamw8 optimizer.lr=0.1",
     "optimizer.lr is 0.1: each weight moves by about"},
    {"train llama.yaml --dry-run model.rope_theta=1",
     "model.rope_theta is 1: it is the base of the frequencies, not a scale: 1e4 to 1e6 are usual"},
    {"train llama.yaml --dry-run model.rms_norm_eps=1", "model.rms_norm_eps is 1: 1e-6 to 1e-5 are usual"},
    {"train llama.yaml --dry-run model.ffn=4", "model.ffn is far below model.hidden: it is a width, not a ratio"},
    {"train llama.yaml --dry-run model.family=mixtral model.experts=4 model.experts_per_token=4",
     "model.experts_per_token routes each token to all experts, so nothing is sparse: set experts_per_token below"},
    {"train llama.yaml --dry-run job.steps=1e9", "job.steps: 1000000000 steps of 256 tokens read data.train "},
    {"train llama.yaml --dry-run strategies=[{\"use\":\"fsdp\"}]",
     "strategies.fsdp shards nothing where dp x cp x ep is 1: raise launch.ranks, or leave it out"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"outer_lr\":0.001}]",
     "strategies.localsgd.outer_lr is 0.001: replicas keep about such a share of what they learned: 0.4 to 1"},
    {"train llama.yaml --dry-run checkpoint={\"every\":21}",
     "command line: warning: checkpoint.every is above job.steps: it never comes"},
    {"train llama.yaml --dry-run checkpoint={\"peers\":21} launch.restarts=1",
     "command line: warning: checkpoint.peers is above job.steps: no copies are made"},
    {"train llama.yaml --dry-run checkpoint={\"every\":2,\"peers\":4} launch.restarts=1",
     "command line: warning: checkpoint.peers is a multiple of checkpoint.every: no copy is newer than the "},
    {"train llama.yaml --dry-run watch.rerun=21",
     "command line: warning: watch.rerun is above job.steps: no instruction runs twice"},
    {"train llama.yaml --dry-run mesh.dp=2 watch.replicas=21",
     "command line: warning: watch.replicas is above job.steps: no replicas are compared"},
    {"train llama.yaml --dry-run metrics.every=21",
     "command line: warning: metrics.every is above job.steps: only the last step and evaluations are logged"},
    {"train epochs.yaml --dry-run eval.every=1000 data.val_fraction=0.1", " steps of job.epochs: nothing is evaluated"},
    {"train epochs.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":7000}]",
     "strategies.localsgd.every: section outer (`heddle explain --section outer`) runs from step 7000 on"},
    {"train llama.yaml --dry-run mesh.dp=2 "
     "strategies=[{\"use\":\"zero\",\"compress\":{\"kind\":\"int8\",\"warmup\":100}}]",
     "runs from step 101 on, and the job has 20 steps: it never runs, and nothing is ever compressed: lower "
     "strategies.zero.compress.warmup, or train longer"},
    {"train llama.yaml --dry-run mesh.dp=2 "
     "strategies=[{\"use\":\"zero\",\"compress\":{\"kind\":\"powersgd\",\"rank\":64}}]",
     "lower strategies.zero.compress.rank, or leave compress out"},
    {"train llama.yaml --dry-run strategies.zero.stage=3 strategies.zero.persist_below=100000000",
     "persist_below 100000000: every parameter has fewer elements and stays whole, as at stage 2: lower "},
    {"train llama.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"zero\",\"stage\":3,\"gather_bucket\":\"500MB\"}]",
     "strategy-zero: warning: gather_bucket 500 MB holds all "},
    {"train llama.yaml --dry-run mesh.dp={\"replicate\":2,\"shard\":2}",
     "command line: warning: mesh.dp: shard is 2, and nothing is sharded, because strategies.zero.stage is 0: every "
     "rank holds all states: say stage 3 (fsdp), or mesh.dp=4"},
    {"train llama.yaml --dry-run mesh.dp=2 "
     "strategies=[{\"use\":\"zero\",\"stage\":1,\"offload\":{\"optimizer\":\"file\",\"path\":\"/dev/shm\"}}]",
     "command line: warning: strategies.zero.offload.path: /dev/shm is a tmpfs, which is memory, so this saves none"},
    {"train llama.yaml --dry-run mesh.tp=2 job.deterministic=exact",
     "command line: warning: job.deterministic is exact, which does not cover mesh.tp, cp and ep"},
    {"train llama.yaml --dry-run mesh=auto launch.ranks=2 recompute=full", "; the job's recompute=full gives way"},
    {"train llama.yaml --dry-run comm.small=64",
     "command line: warning: comm.small has no effect where the number of ranks is 1: leave it out"},
    {"train llama.yaml --dry-run data.train=[\"corpus.txt\",\"./corpus.txt\"]",
     "corpus.txt is there twice, so it is read twice an epoch: drop one"},
    {"train llama.yaml --dry-run data.train=[\"corpus.txt\",\"copy.txt\"]",
     "copy.txt is a copy of corpus.txt, so the same data is read twice an epoch: drop one"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER
     " data.train=[\"texts/b.txt\",\"te?ts/*.txt\"]",
     "warning: command line: data.train: texts/a.txt is a copy of texts/b.txt, so the same data "
     "is read twice an epoch: drop one"},
    {"train llama.yaml --dry-run mesh.dp=2 liveness.dead_after=10ms",
     "command line: warning: liveness.dead_after is less than half a second"},
    {"train llama.yaml --dry-run precision.optimizer=fp16",
     "command line: warning: precision.optimizer is a type of a short range"},
    {"train llama.yaml --dry-run recompute={\"every\":9}",
     "command line: warning: recompute: one segment of 9 blocks is the whole model (2 blocks): recomputing it "
     "costs a forward pass and saves no memory: say {every: N} with a smaller N, or none"},
    {"train llama.yaml --dry-run data.shuffle_buffer=1",
     "command line: warning: data.shuffle_buffer is below 64, and no fewer are shuffled at a time: say 64 or more"},
    {"train llama.yaml --dry-run data.shuffle_buffer=63", "command line: warning: data.shuffle_buffer is below 64"},
    {"train llama.yaml --dry-run device.kernels=reference device.isa=avx2",
     "command line: warning: device.isa has no effect where device.kernels is reference: leave it out, or say "
     "device.kernels=fast"},
    {"train llama.yaml --dry-run device.kernels=reference device.logits=1MiB",
     "command line: warning: device.logits has no effect where device.kernels is reference"},
    {"explain llama.yaml device.kernels=reference device.products=onednn",
     "command line: warning: device.products has no effect where device.kernels is reference"},
    {"train llama.yaml --dry-run mesh.pp=2 data.micro_batch=8 "
     "strategies=[{\"use\":\"3d\",\"schedule\":\"zb-h1\"},{\"use\":\"zero\"}]",
     "1 micro-batch a step for 2 stages: with zb-h1 they idle for up to 100 % of the time that they work"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"megatron\"},{\"use\":\"zero\"}]",
     "command line: warning: strategies.megatron has no effect where mesh.pp, mesh.cp, mesh.ep, mesh.tp are 1"},
    {"train llama.yaml --dry-run mesh.dp=2 plugins.path=" PIPES " comm.axes={\"dp\":\"pipes\",\"dp_shard\":\"shm\"}",
     "command line: warning: comm.axes.dp has no effect, because dp_shard and dp_replicate have their own: leave"
     " it out"},
    {"train llama.yaml --dry-run " BY_PIPES,
     "command line: warning: comm.use has no effect where the number of ranks is 1: leave it out"},
    {"train llama.yaml --dry-run data.train=[{\"path\":\"corpus.txt\",\"weight\":0.3}]",
     "command line: warning: data.train is one file: leave its weight out"},
    {"train llama.yaml --dry-run plugins.path=shards",
     "command line: warning: plugins.path: shards has no heddle-*.so: name the folder of a built plugin"},
    {"train alias.yaml --dry-run mesh.dp=2",
     "alias.yaml:6:59: warning: strategies.zero.allgather_bucket_size has no effect where strategies.zero.stage is 2: "
     "leave it out, or say strategies.zero.stage=3"},
    {"train llama.yaml --dry-run strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.5}]",
     "command line: warning: strategies.ema: the average is lost with the run, which saves nothing: add checkpoint: "
     "{}, or leave ema out"},
    {"train llama.yaml --dry-run checkpoint={} strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0}]",
     "strategies.ema.decay is 0: the average is a copy of the weights: raise it, as 0.999, or leave ema out"},
    {"train llama.yaml --dry-run checkpoint={} strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.001}]",
     "strategies.ema.decay is 0.001: the average keeps less than half of itself at each update, and hardly differs "
     "from"},
    {"train llama.yaml --dry-run model.vocab=32000 data.format=bytes",
     "command line: model.vocab: 32000, and corpus.txt is read as bytes, of which there are 256: the other ids are"},
    {"train llama.yaml --dry-run model.sliding_window=1",
     "command line: warning: model.sliding_window is 1: a token attends to itself alone"},
    {"train llama.yaml --dry-run model.family=mixtral model.experts=1 model.experts_per_token=1",
     "command line: warning: model.experts is 1: the router has nothing to choose"},
    {"train llama.yaml --dry-run optimizer.betas=[0.999,0.9]",
     "command line: warning: optimizer.betas has the larger one first: second moments are to remember longer"},
    {"train llama.yaml --dry-run precision.optimizer=bf16 optimizer.betas=[0.9,0.999]",
     "command line: warning: precision.optimizer rounds second moments to nearest, and their change in a step, 1 - "
     "optimizer.betas[1], is smaller than a rounding step: they rise and hardly fall; leave it out, or say "
     "optimizer.betas=[0.9, 0.99] or less"},
    {"train llama.yaml --dry-run precision.master=bf16 optimizer.use=sgd",
     "command line: warning: precision.master rounds weights to nearest: smaller updates, in bf16 below 1/256 of a"},
    {"train llama.yaml --dry-run mesh.dp=2 comm.sums=any",
     "command line: warning: comm.sums has no effect, as all transports have collectives of their own: leave it out"},
    {"check llama.yaml mesh.dp=2 comm.tune=two.json",
     "command line: warning: comm.tune has no effect, as all transports have collectives of their own: leave it out"},
    {"train llama.yaml --dry-run mesh.dp=2 " BY_PIPES "comm.tune=ring.json",
     "command line: warning: comm.tune has rules that are ignored without comm.sums: any, for the algorithm ring"},
    {"train llama.yaml --dry-run mesh.dp=4 " BY_PIPES "comm.tune=two.json",
     "command line: warning: comm.tune has rules for 0 % of the bytes of a step, whose operations `heddle explain` "
     "lists with ranks and bytes: make the file with `heddle bench --tune` for all of them"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies.zero.stage=3 " BY_PIPES "comm.tune=two.json",
     "command line: warning: comm.tune has rules for 0 % of the bytes of a step"},
    {"train llama.yaml --dry-run mesh.dp=2 " BY_PIPES "comm.tune=behind.json",
     "command line: warning: comm.tune has a rule that is never reached, behind one of as many ranks and bytes or "
     "more (put those of less first): rule 2, of all_reduce"},
    {"bench --train llama.yaml --steps 3 --warmup 1 mesh.dp=2 "
     "strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":3}]",
     "command line: warning: strategies.localsgd.every: section outer (`heddle explain --section outer`) runs "
     "every 3 steps, and the medians of steps 2 to 4 are of steps without it"},
    {"bench --train llama.yaml --steps 2 --warmup 1 --ranks 1,2 "
     "strategies=[{\"use\":\"zero\",\"stage\":1,\"compress\":{\"kind\":\"int8\",\"warmup\":100}}]",
     "runs from step 101, and the medians of steps 2 to 3 are of steps without it: raise --warmup"},
    {"trace llama.yaml --steps 1-1", "metrics.trace: only the first two steps of a run are traced, which are slow"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":5}] "
     "eval.every=4 data.val_fraction=0.1",
     "command line: warning: eval.every should be a multiple of strategies.localsgd.every (5), which "
     "synchronizes the replicas: in between, val_loss is the mean over replicas that differ, and no saved model has "
     "their parameters"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":5}] "
     "checkpoint={\"every\":4}",
     "command line: warning: checkpoint.every should be a multiple of strategies.localsgd.every (5), which "
     "synchronizes the replicas: a checkpoint saved in between holds the model as it was when replicas were last "
     "equal"},
    {"train llama.yaml --dry-run launch.time_limit=30m",
     "command line: warning: launch.time_limit ends the job before its last step, and there are no checkpoints"},
    {"train llama.yaml --dry-run mesh.dp=2 job.steps=10 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\"}]",
     "command line: warning: strategies.localsgd.every: section outer (`heddle explain --section outer`) runs from "
     "step 20 on, and the job has 10 steps: it never runs, and the model that is saved, evaluated and exported stays "
     "the "
     "initial one: lower strategies.localsgd.every, or train longer"},
    {"train llama.yaml --dry-run mesh.dp=2 job.steps=10 "
     "strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":7}]",
     "command line: warning: strategies.localsgd.every: replicas are made equal every 7 steps, and the job has 10: "
     "its last 3 "
     "steps "
     "are in no model that is saved"},
    {"train llama.yaml --dry-run job.steps=200 " MIX("0.1", "0.9"),
     "warning: command line: data.train: low.txt is seen 46.5 times over the whole run, all data together "},
    {"train llama.yaml --dry-run job.steps=200 " MIX("0.1", "0.9"),
     " times: beyond about 4 times a source teaches less and less; for 4 times, set its weight to 0.0084"},
    {"train llama.yaml --dry-run job.steps=2 metrics.profile=true",
     "command line: warning: metrics.profile covers only the first two steps, which are slow and which longer runs "},
    {"train llama.yaml --dry-run job.steps=1 metrics.blocks=first.csv",
     "command line: warning: metrics.blocks covers only the first two steps, which are slow and which longer runs "},
    {"train llama.yaml --dry-run data.batch=80000 data.micro_batch=8",
     "command line: data.batch: 80000 sequences of data.seq_len tokens are more than the "},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=texts data.field=body",
     "warning: command line: data.field has no effect, because no file is of JSON lines (.jsonl, .json)"},
    {"train llama.yaml --dry-run data.append_eod=true",
     "warning: command line: data.append_eod has no effect, because nothing is tokenized: set data.tokenizer"},
    {"train llama.yaml --dry-run data.eod=3",
     "command line: warning: data.eod has no effect where data.documents is continue: leave it out, or say "
     "data.documents=mask"},
    {"train llama.yaml --dry-run launch.machine=h100-8",
     "command line: warning: launch.machine has no effect where neither mesh nor strategies is auto"},
    {"train llama.yaml --dry-run launch.machine=h100-8 --machine cpu",
     "command line: launch.machine is h100-8, and --machine cpu counts"},
    {"train llama.yaml --dry-run job.steps=9 schedule.kind=wsd",
     "command line: warning: schedule.kind is wsd, and its last phase has 0 steps: the rate never falls; set"},
    {"train llama.yaml --dry-run job.steps=9 schedule.kind=wsd schedule.decay=1",
     "its last phase has 1 step, which is at optimizer.lr: the rate never falls\n"},
    {"train llama.yaml --dry-run job.steps=9 schedule={\"kind\":\"cosine\",\"warmup\":9}",
     "command line: warning: schedule.kind is cosine, and its last phase has 0 steps: the rate never falls; lower "
     "schedule.warmup\n"},
    {"train llama.yaml --dry-run job.steps=9 schedule={\"kind\":\"linear\",\"warmup\":8}",
     "its last phase has 1 step, which is at optimizer.lr: the rate never falls; lower schedule.warmup\n"},
    {"train llama.yaml --dry-run optimizer.lr=1e-3 schedule={\"kind\":\"cosine\",\"min_lr\":1e-3}",
     "command line: warning: schedule.min_lr is not below optimizer.lr: the rate never falls"},
    {"train llama.yaml --dry-run model.sliding_window=32",
     "command line: warning: model.sliding_window is not below data.seq_len, so training never uses it"},
    {"train llama.yaml --dry-run checkpoint={} launch.notice={\"file\":\"corpus.txt\"}",
     "command line: launch.notice: corpus.txt is already there, so the job would save and end at once: remove it"},
    {"train llama.yaml --dry-run launch.notice={\"file\":\"nowhere/x\"}",
     "warning: command line: launch.notice: nowhere/x: its folder is not there, so the notice may never come"},
    {"explain llama.yaml launch.ranks=1 launch.nodes=1:2 checkpoint={} checkpoint.every=0",
     "command line: warning: launch.nodes may lose machines, and has only the last step's checkpoint to go on from"},
    {"train llama.yaml job.steps=1 job.name=harmless mesh.dp=2 comm.hooks=[{\"use\":\"faults\",\"at\":1000000}]",
     "faults: warning: rank 0: no stall was injected: comm-shm had "},
    {"plan llama.yaml --machine cpu --assume whole_recompute=yes",
     "warning: --assume: whole_recompute has no effect: the job recomputes no whole blocks"},
    {"train llama.yaml --dry-run launch.notice={\"file\":\"/nowhere/x\"}",
     "command line: warning: launch.notice ends the job before its last step, and there are no checkpoints"},
    {"train llama.yaml --dry-run mesh.dp=2 comm.axes={\"dp_replicate\":\"shm\"}",
     "command line: warning: comm.axes.dp_replicate has no effect, because its size in mesh.dp is 1: leave it out"},
    {"train llama.yaml --dry-run watch.command=/nowhere/notify",
     "command line: watch.command: /nowhere/notify: No such file"},
    {"train llama.yaml --dry-run watch.command=heddle-no-such-command",
     "command line: watch.command: heddle-no-such-command: no such command: name one that PATH has"},
    {"train llama.yaml --dry-run watch.command=./corpus.txt", "command line: watch.command: ./corpus.txt: Permission"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --temperature 0 --top-k 3",
     "warning: --top-k has no effect with --temperature 0"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --temperature 0 --top-k 50 --top-p 0.5 --samples 3 "
     "--seed 2",
     "warning: --top-k, --top-p, --samples above 1, --seed have no effect with --temperature 0"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --temperature 0 --samples 2",
     "warning: --samples above 1 has no effect with --temperature 0"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --top-k 1 --samples 2",
     "warning: --samples above 1 has no effect with --top-k 1"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --top-k 5000",
     "warning: --top-k has no effect: the vocabulary has 256 tokens"},
    {"train llama.yaml --dry-run checkpoint={\"dir\":\"renamed\"}",
     "warning: checkpoint best is passed over, because its name is no step's"},
    {"plan llama.yaml --machine cpu --ranks 2 --search mesh.tp=2",
     "warning: command line: mesh.tp has no effect, because --search chooses it"},
    {"bench --train llama.yaml --steps 1 --warmup 0 checkpoint={\"every\":1}",
     "has no effect on --train: steps alone are measured"},
    {"data shuffle toks/a --to shuffled", "warning: toks/a has one document, so shuffled is a copy"},
    {"explain llama.yaml --timeline --rates tp.link=1e9", "--rates: tp. has no effect: this axis of the mesh is 1"},
    {"train llama.yaml --dry-run mesh.dp=2 comm.timeout=10ms",
     "command line: warning: comm.timeout is below liveness.dead_after: a wait ends the job before"},
    {"train llama.yaml --dry-run job.steps=20 watch.memory=0.1",
     "warning: command line: watch.memory raises no alarm before 128 rows are logged, and this run logs 20"},
    {"train llama.yaml --dry-run job.steps=47 watch.throughput=0.1",
     "command line: watch.throughput raises no alarm before 48 rows are logged, and this run logs 47"},
    {"train llama.yaml --dry-run job.steps=320 metrics.every=10 watch.grad_norm=5",
     "command line: watch.grad_norm raises no alarm before 33 rows are logged, and this run logs 32"},
    {"train llama.yaml --dry-run job.steps=200 watch.straggler=0.1",
     "command line: watch.straggler raises no alarm on one rank"},
    {"train llama.yaml --dry-run job.steps=200 mesh.pp=2 watch.straggler=0.2",
     "command line: watch.straggler raises no alarm, because ranks of one pipeline stage are compared"},
    {"train llama.yaml --dry-run job.steps=200 watch.data_wait=1",
     "command line: watch.data_wait raises no alarm, because the fraction that it watches is never above 1"},
    {"train llama.yaml --dry-run job.steps=200 watch.loss_spike=1",
     "command line: watch.loss_spike is 1 or less: ordinary steps are beyond that, too"},
    {"train llama.yaml --dry-run job.steps=200 watch.utilisation=1",
     "command line: watch.utilisation is 1: no step is without any wait"},
    {"train llama.yaml --dry-run job.steps=200 watch={\"command\":\"true\",\"loss_spike\":0,\"grad_norm\":0,"
     "\"straggler\":0,\"data_wait\":0,\"exposed_comm\":0,\"memory\":0,\"descriptors\":0,\"replicas\":0,\"rerun\":"
     "0}",
     "command line: watch.command has no effect, because all rules are 0"},
    {"train llama.yaml --dry-run data.train=unwritten.bin",
     "unwritten.bin: its first tokens are all 0: was it made, and never written?"},
    {"train llama.yaml --dry-run model.vocab=65536 data.train=tail.bin",
     "tail.bin: its last tokens are all 0: was it made, and never written to its end?"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=rows.bin",
     "warning: rows.bin: 62% of the tokens lie in runs of 8 and more of one id, as 0: is that padding?"},
    {"train llama.yaml --dry-run data.train=sevens.txt",
     "warning: sevens.txt: 100% of the tokens lie in runs of 8 and more of one id, as 7: is that padding?"},
    {"train llama.yaml --dry-run data.train=sevens.txt", "warning: sevens.txt: no id is above 7, but model.vocab is "
                                                         "256: is that the tokenizer's vocabulary size, and are"},
    {"train llama.yaml --dry-run model.vocab=50257 data.train=[\"toks/a.bin\",\"bytes.npy\"]",
     "warning: toks/a.bin: no id is above 314, but model.vocab is 50257: is that the tokenizer's vocabulary"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/lines lines.txt",
     "warning: lines.txt: is JSON, and its name says text: keys and quotes become tokens, too: call it .jsonl, and a"},
    {"train llama.yaml job.steps=1 model.vocab=320 data.tokenizer=" TOKENIZER " data.train=lines.txt job.name=lines",
     "warning: lines.txt: is JSON, and its name says text: keys and quotes become tokens, too: call it .jsonl, and a"},
    {"train llama.yaml --dry-run model.vocab=641 data.train=toks/a.bin",
     "warning: command line: model.vocab: 641, and "},
    {"train llama.yaml --dry-run model={\"use\":\"transformer\",\"from\":\"empty\"} data.format=bytes "
     "data.train=sevens.txt",
     "warning: command line: model.from: empty: weights are all 0 ("},
    {"check llama.yaml model={\"use\":\"transformer\",\"from\":\"odd\"} data.seq_len=8",
     "command line: warning: model.from: rms_norm_eps is 0.5 in its config.json: 1e-6 to 1e-5 are usual"},
    {"check llama.yaml model={\"use\":\"transformer\",\"from\":\"odd\"} data.seq_len=8",
     "command line: warning: model.from: rope_theta is 1 in its config.json: it is the base of the frequencies"},
    {"train llama.yaml job.steps=2 model={\"use\":\"transformer\",\"from\":\"empty\"} data.format=bytes "
     "data.train=sevens.txt job.name=still",
     "warning: step 1: the gradient norm is 0, so this step learns nothing: are weights 0, or so large that"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --temperature 0 --seed 2",
     "warning: --seed has no effect with --temperature 0"},
    {"sample llama.yaml --random-weights --prompt abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz --max-new 1",
     "warning: a prompt has 52 tokens, and the model sees the last "},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 checkpoint={} checkpoint.resume=step-00000002",
     "warning: checkpoint.resume has no effect but on training: --checkpoint names what is read"},
    {"sample llama.yaml model={\"use\":\"transformer\",\"from\":\"empty\"} data.seq_len=8 --prompt 1 --max-new 1 "
     "job.seed=2",
     "warning: job.seed has no effect on what is sampled: --seed draws it"},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --stop \\nUser:",
     "warning: --stop '\\nUser:' has a backslash and an n: a line feed is $'\\n' in bash"},
    {"sample llama.yaml --random-weights --prompt User:\\n\\nBot: --max-new 1",
     "warning: --prompt 'User:\\n\\nBot:' has a backslash and an n: a line feed is $'\\n' in bash"},
    {"sample " QWEN "--chat chatml --prompt <|im_start|>user",
     "warning: --chat: a prompt has the text of <|im_start|>, as letters: leave --chat out, or give the words alone"},
    {"sample " QWEN "--prompt a data.chat_template=chatml",
     "warning: the job's data.chat_template is chatml, and the prompt is no such one: say --chat chatml"},
    {"sample " QWEN "--chat chatml --prompt a data.chat_template=plain",
     "warning: --chat chatml: the job's data.chat_template is plain, and the model has seen no such prompt"},
    {"data tokenize --tokenizer " QWEN_FILE " --chat-template chatml --to toks/asked ask.jsonl",
     "warning: ask.jsonl: 99 of 99 documents are prompt and completion, which chatml does not render: write messages"},
    {"sample " QWEN "--chat chatml --prompt a data.train=ask.jsonl data.tokenizer=" QWEN_FILE " "
     "data.chat_template=chatml",
     "warning: --chat chatml: the chat template of data.train is plain, and the model has seen no such prompt"},
    {"sample " QWEN "--chat chatml --prompt a data.train=toks/ask.bin",
     "warning: --chat chatml: the chat template of data.train is plain, and the model has seen no such prompt"},
    {"sample " QWEN "--prompt a data.train=toks/talk.bin",
     "warning: the chat template of data.train is chatml, and the prompt is no such one: say --chat chatml"},
    {"train llama.yaml --dry-run model.vocab=1024 data.train=toks/talk.bin data.val=toks/other.bin eval.every=2",
     "warning: command line: data.val: the tokens of toks/other.bin are rendered by the chat template mistral (its "
     ".meta.json), and those of data.train, toks/talk.bin, by chatml: the model reads two formats"},
    {"train llama.yaml --dry-run model.vocab=1024 data.train=[\"toks/talk.bin\",\"toks/other.bin\"]",
     "warning: command line: data.train: the tokens of toks/other.bin are rendered by the chat template mistral"},
    {"train llama.yaml --dry-run " TALK "data.train=[\"talk.jsonl\",\"toks/other.bin\"]",
     "template mistral (its .meta.json), and those of the text by chatml: the model reads two formats"},
    {"train llama.yaml --dry-run " TALK "data.train=talk.jsonl data.field=text",
     "warning: command line: data.field has no effect, because data.chat_template reads messages, or prompt and "},
    {"train llama.yaml --dry-run " TALK "data.train=talk.jsonl data.documents=mask data.eod=300",
     "warning: command line: data.eod: 300 is not the end-of-document token of " QWEN_FILE
     ", 0: documents of talk.jsonl "
     "would end at every 300 instead of where its index says: leave data.eod out"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=toks/a.bin data.tokenizer=" TOKENIZER " "
     "data.documents=pack data.eod=300",
     "documents of toks/a.bin would end at every 300 instead of where its index says: leave data.eod out"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=rows.bin data.tokenizer=" TOKENIZER " data.documents=mask "
     "data.eod=300",
     "would end at every 300, a part of words: name the tokenizer's"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=toks/ended.bin "
     "data.documents=mask",
     "warning: command line: data.documents is mask: token 0 ends a document, but in a sample "},
    {"sample llama.yaml --random-weights --prompt a --max-new 1 --ignore-eos",
     "warning: --ignore-eos has no effect: no token is known that ends a text"},
    {"plan llama.yaml --assume tp_overlap=no,dp_overlap=no",
     "warning: --assume: tp_overlap has no effect: mesh.tp is 1\nwarning: --assume: dp_overlap has no effect: mesh.dp "
     "is 1"},
    {"train llama.yaml --dry-run optimizer.lr=0.1 optimizer.weight_decay=10",
     "command line: warning: optimizer.weight_decay times optimizer.lr is 1 or more: each step takes weights to 0 or"},
    {"train llama.yaml --dry-run optimizer.use=muon optimizer.adamw_lr=0",
     "command line: warning: optimizer.adamw_lr is 0: embeddings, norms and the head never change"},
    {"train llama.yaml --dry-run model.family=mixtral model.experts=4 model.capacity=0.5",
     "command line: warning: model.capacity is below 1: tokens are dropped even where experts are chosen evenly"},
    {"train llama.yaml --dry-run model.family=mixtral model.experts=4 model.capacity=100",
     "command line: warning: model.capacity is above model.experts / model.experts_per_token: no token is ever "
     "dropped"},
    {"train llama.yaml --dry-run mesh.dp=2 comm.hooks=[\"trace\",\"check\",\"trace\"]",
     "command line: warning: comm.hooks: trace is there twice, and does the same twice: leave one out"},
    {"train llama.yaml --dry-run eval.every=5 data.val_fraction=0.9",
     "command line: warning: data.val_fraction holds out more than half of data.train: the rest is trained on"},
    {"train llama.yaml --dry-run --nodes 1 --rendezvous a:29400",
     "warning: command line: launch.rendezvous has no effect, because the job runs on one machine (launch.nodes)"},
    {"train llama.yaml --dry-run job.steps=100 strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.9999}]",
     "command line: warning: strategies.ema.decay: after the 100 steps of the job 99 % of the average are still the "
     "initial weights: lower it; 0.955 leaves 1 % of them"},
    {"data tokenize --tokenizer " TOKENIZER " --eod a --to toks/word turns.jsonl",
     "warning: --eod a: is a part of words, and " TOKENIZER " ends documents by <|endoftext|>: say --append-eod"},
    {"data tokenize --tokenizer begins.json --eod <s> --to toks/begun turns.jsonl",
     "warning: --eod <s>: begins a text, and begins.json ends documents by <|endoftext|>"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/copies texts",
     "warning: texts/b.txt is a copy of texts/a.txt: its documents are written twice"},
    {"train llama.yaml --dry-run " TALK "data.train=talk.jsonl data.append_eod=true",
     "warning: command line: data.append_eod has no effect, because data.chat_template has ends of its own"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/endless turns.jsonl",
     "warning: turns.jsonl: 60 documents follow one another without a token that ends one: say --append-eod"},
    {"train llama.yaml job.steps=1 job.name=endless model.vocab=320 data.tokenizer=no-end.json "
     "data.train=turns.jsonl",
     "warning: turns.jsonl: 60 documents follow one another without a token that ends one: say which by --eod"},
    {"data tokenize --tokenizer " TOKENIZER " --append-eod --to toks/marks turns.jsonl",
     "warning: turns.jsonl: 20 of 60 documents have <|im_start|>, which is no token of " TOKENIZER},
    {"data tokenize --tokenizer lacking.json --append-eod --to toks/unknown turns.jsonl",
     "tokens are <unk> (1), as lacking.json lacks characters of this text, if that has no <unk> itself"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=toks/ended.bin data.val=toks/two.bin eval.every=2 "
     "eval.batches=2",
     "sequences, none of which is of turns.jsonl: raise eval.batches to 7"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.documents=mask",
     "warning: command line: data.documents is mask, but a file of text is one document, so nothing is masked"},
    {"data tokenize --tokenizer no-end.json --to toks/bare ended.txt",
     "warning: ended.txt: has lines of <|endoftext|>, which is no token of no-end.json and becomes pieces of text"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/escaped escaped.jsonl",
     "escaped.jsonl: 20 of 20 documents have \\n as a backslash and an n, and none has a line feed: was their JSON"},
    {"sample llama.yaml --random-weights --max-new 1 --prompt-file hot.jsonl",
     "warning: --prompt-file hot.jsonl:1: temperature is not read: --temperature, --max-new, --stop and the like are"},
    {"check llama.yaml model={\"use\":\"transformer\",\"from\":\"odd\"} data.seq_len=8",
     "command line: warning: model.from: its config.json has auto_map, by which transformers runs code of its folder"},
    {"train llama.yaml --dry-run data.train=[\"corpus.txt\",\"chars.npy\"]",
     "warning: command line: data.train: corpus.txt is read as bytes, and the ids of chars.npy begin at 0 and end "
     "below "
     "127, as those of characters do: are they bytes, too?"},
    {"train llama.yaml --dry-run model.vocab=320 data.train=[\"toks/a.bin\",\"chars.npy\"]",
     "warning: chars.npy has ids of one byte (uint8), or is read as bytes, and toks/a.bin has ids of a wider type"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies.zero.stage=3 strategies.zero.max_live=10 "
     "strategies.zero.prefetch=4",
     "command line: warning: strategies.zero.prefetch (4) has no effect: the job's program is the same with 1, its "
     "default: leave it out\n"},
    {"train llama.yaml --dry-run mesh.dp=2 strategies.zero.stage=3 strategies.zero.max_live=10 "
     "strategies.zero.reshard_after_forward=false",
     "warning: strategies.zero.reshard_after_forward (false) has no effect: the job's program is the same with auto"},
    {"explain llama.yaml mesh.dp=2 strategies.zero.stage=3 strategies.zero.prefetch_size=1000",
     "warning: strategies.zero.prefetch_size (1000) has no effect: the job's program is the same with 0, its default"},
    {"check llama.yaml mesh.dp=2 optimizer.use=sgd optimizer.momentum=0 strategies.zero.stage=1 "
     "strategies.zero.offload.optimizer=host",
     "warning: strategies.zero.offload.optimizer (host) has no effect: the job's program is the same with none"},
    {"train llama.yaml --dry-run optimizer.use=sgd optimizer.momentum=0 precision.optimizer=bf16",
     "warning: precision.optimizer (bf16) has no effect: the job's program is the same with fp32, its default"},
    {"train llama.yaml --dry-run optimizer.use=adamw8 optimizer.min_8bit_size=1000000000 optimizer.block_size=64",
     "command line: warning: optimizer.min_8bit_size: no matrix of this model has that many elements in whole blocks "},
    {"explain llama.yaml optimizer.use=adamw8 mesh.pp=2 data.micro_batch=1 optimizer.block_size=65536",
     "warning: optimizer.min_8bit_size: no matrix of this model has that many elements in whole blocks of optimizer."},
    {"train llama.yaml --dry-run data.val=copy.txt eval.every=2",
     "warning: command line: data.val: copy.txt has the same size and the same first and last bytes as corpus.txt of "
     "data.train: it is not held out"},
    {"train llama.yaml --dry-run data.val=low.txt data.test=texts/a.txt eval.every=2",
     "data.test: texts/a.txt has the same bytes as low.txt of data.val: the test is on what was evaluated before"},
    {"train llama.yaml --dry-run data.val=end.txt eval.every=2",
     "warning: command line: data.val: the middle of end.txt is in corpus.txt of data.train, too: it is not held out"},
    {"train llama.yaml --dry-run data.val=sevens.txt eval.every=2",
     "warning: command line: data.val: its frequent tokens overlap with those of data.train by only 0% ("},
    {"train llama.yaml --dry-run data.val=returns.txt eval.every=2", "warning: command line: data.val: token 13 is "},
    {"train llama.yaml --dry-run data.val=drawn.txt eval.every=2",
     "% of its passages of 64 tokens are in data.train, too (in the first 4194304 tokens): documents that are trained"},
    {"train llama.yaml --dry-run data.train=twice.txt",
     "% of its passages of 64 tokens occur more than once (in the first 4194304 tokens): are documents there several"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=parts",
     "data.train: by their names, parts/train-0.txt is training data and parts/validation-0.txt is held out, yet "
     "both are"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=splits",
     "data.train: by their names, splits/train/0.txt is training data and splits/test/0.txt is held out, yet both are"},
    {"train llama.yaml --dry-run data.train=parts/validation-0.txt data.val=parts/train-0.txt eval.every=2",
     "data.train is parts/validation-0.txt, and data.val is parts/train-0.txt: by their names, they are swapped"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=parts",
     "warning: parts/README.md: is text that is trained on, beside parts/more.jsonl: is it what describes the data?"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/parts parts",
     "warning: parts/README.md: is text that is trained on, beside parts/more.jsonl: is it what describes the data?"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=parts",
     "warning: parts/more.jsonl.gz: parts/more.jsonl is there, too, and both are read"},
    {"train llama.yaml --dry-run data.train=returns.txt data.val=turned.txt eval.every=2",
     "% of data.train and none of data.val (of samples of 65536): are both of one tokenizer, with the same ends of"},
    {"eval llama.yaml model={\"use\":\"transformer\",\"from\":\"empty\"} data.format=bytes data.train=sevens.txt "
     "data.val_fraction=0.95 eval.batches=1",
     "warning: val_loss: the weights of empty have a loss of 3.47, and the tokens' frequencies alone give 0.00"},
    {"train llama.yaml --dry-run metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"a.prom\",\"address\":"
     "\"0.0.0.0\"}]",
     "address has no effect where metrics.sinks"},
    {"train llama.yaml --dry-run metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"a.prom\",\"machine\":"
     "false}]",
     "machine has no effect where metrics.sinks"},
    {"plan llama.yaml --machine cpu --sweep optimizer.lr=1e-3,1e-4",
     "warning: --sweep: no plan of these depends on optimizer.lr: all rows are the same"},
    {"check llama.yaml precision.compute=fp16 precision.loss_scale=1",
     "command line: warning: precision.loss_scale does not scale, and small gradients (in fp16 below 6e-8) become 0"},
    {"check llama.yaml precision.compute=fp16 precision.loss_scale=16",
     "command line: warning: precision.loss_scale is the scale itself, not an exponent of 2 like DeepSpeed's"},
    {"check llama.yaml mesh.dp=2 strategies=[{\"use\":\"zero\",\"compress\":{\"kind\":\"fp16\"}}]",
     "command line: warning: strategies.zero.compress.kind is fp16, and on their way gradients below 6e-8 become 0: "
     "say "
     "precision.loss_scale=dynamic, or bf16"},
    {"check llama.yaml data={\"train\":\"corpus.txt\",\"seq_len\":32,\"batch\":8} job.deterministic=exact",
     "command line: warning: job.deterministic is exact, but data.micro_batch is not set, so it depends on the data "
     "ranks"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/blanks blanks.jsonl",
     "warning: blanks.jsonl: 3 of 4 documents are empty: is \"text\" the field of their text? --field names another"},
    {"data tokenize --tokenizer " TOKENIZER " --to toks/page page.txt",
     "warning: page.txt: is an HTML page, and all of its markup becomes tokens: fetch the file itself"},
    {"train llama.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER " data.train=page.txt",
     "warning: page.txt: is an HTML page, and all of its markup becomes tokens: fetch the file itself"},
    {"train llama.yaml --dry-run " PAIRS "own",
     "warning: own: each label that counts is the id of its own token, as in"},
    {"train llama.yaml job.steps=1 job.name=threads device.threads=1000", "device.threads: 1000 threads share the "},
};

/* Files are opened for a check, too. */
static void expect_once(const char *words, const char *want)
{
    struct command *c = command_run("%s", words);
    const char *first = strstr(c->err, want);
    ck_assert_msg(c->code == 0 && first && !strstr(first + 1, want), "`%s`: exit code %d; it said:\n%s", words, c->code,
                  c->err);
}

/* Words that get no warning. */
static const char *const silent[] = {
    "comm.use=shm",
    "mesh.dp=2 " BY_PIPES "comm.tune=two.json comm.sums=any",
    "mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":2}] eval.every=4 "
    "data.val_fraction=0.1 checkpoint={\"every\":4}",
    "precision.master=bf16 optimizer.rounding=stochastic",
    "data.train=[\"corpus.txt\",\"bytes.npy\"]",
    "data.train=begin.txt data.val=end.txt eval.every=2",
    PAIRS "pairs", /* whose other files are its own affair */
    "checkpoint={} job.steps=100 strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":0.99}]",
    "checkpoint={\"every\":2,\"keep\":{\"best\":5}} data.val_fraction=0.1 eval.every=100", /* before each save */
    "data.shuffle_buffer=64",
    "model.vocab=320 data.train=rows.bin data.documents=mask data.eod=0", /* each such token is a document */
    "mesh.pp=2 model.layers=4 strategies=[{\"use\":\"3d\",\"schedule\":\"zb-v\",\"virtual\":2},{\"use\":\"zero\"}]",
    "mesh.dp=2 strategies.zero.stage=3 strategies.zero.prefetch=2 strategies.zero.reshard_after_forward=true",
    "model.dropout=0",
    "model.vocab=320 data.train=han.txt data.tokenizer=" TOKENIZER, /* the first 4,096 bytes cut a character */
    "model.vocab=320 data.train=page.html data.tokenizer=" TOKENIZER,
    "optimizer.use=adamw8 optimizer.block_size=16 optimizer.min_8bit_size=16",
    "optimizer.use=adamw_torch_fused", /* names of transformers */
    "optimizer.use=adamw_bnb_8bit",
    "precision.compute=fp16 precision.loss_scale=1024",
    "mesh.dp=2 precision.loss_scale=dynamic strategies=[{\"use\":\"zero\",\"compress\":{\"kind\":\"fp16\"}}]",
    "job.deterministic=exact",
    "data.val=turned.txt eval.every=2",    /* of the same size */
    "job.steps=200 " MIX("0.1", "0.0085"), /* 4 times */
    "job.steps=200 data.train=[{\"path\":\"high.txt\",\"weight\":1},{\"path\":\"low.txt\",\"weight\":1}]",
    "job.steps=3 metrics.profile=true",
    "model.vocab=1024 data.train=[\"toks/talk.bin\",\"toks/ask.bin\"] data.loss=completion",
    "model.vocab=320 data.train=[\"toks/ends.bin\",\"toks/a.bin\",\"toks/own.bin\"]", /* of one, and in the text */
    TALK "data.train=[\"talk.jsonl\",\"ask.jsonl\",\"toks/talk.bin\"]",
    TALK "data.train=talk.jsonl data.documents=mask data.eod=0",
    "model.vocab=320 data.tokenizer=" TOKENIZER " data.train=books data.documents=mask",
    TALK "data.train=ask.jsonl data.chat_template=plain data.append_eod=true",
    "recompute=full",
    "recompute=selective"};

/* Arrays of int32, as data-pairs reads them; `shift`: of the tokens. */
static void write_array(const char *path, int shift)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "\223NUMPY\001%cv%c%-117s\n", 0, 0, "{'descr': '<i4', 'fortran_order': False, 'shape': (128, 32), }");
    for (int32_t i = 0; i < 128 * 32; i++)
        fwrite(&(int32_t){(i + shift) * 7 % 251}, 4, 1, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void write_inputs(void)
{
    ck_assert_int_eq(
        system("head -c 1000 corpus.txt > low.txt && cp corpus.txt copy.txt && tr 'a-y' 'b-z' < "
               "copy.txt > other.txt && truncate -s 9000 unwritten.bin && "
               "mkdir -p shards texts renamed/best && touch renamed/best/index.json && cp low.txt "
               "texts/a.txt && cp low.txt texts/b.txt && cp "
               "corpus.txt shards/a.bin && cp low.txt shards/b.bin && "
               "sed 's/steps: 20/epochs: 0.5/' llama.yaml >epochs.yaml && { cat llama.yaml && echo "
               "'strategies: [{use: zero, stage: 2, allgather_bucket_size: 2e8}]'; } >alias.yaml && "
               "head -c 9000 /dev/zero | tr '\\000' '\\007' > sevens.txt && "
               "awk 'NR % 40 < 8' corpus.txt > drawn.txt && cat corpus.txt low.txt corpus.txt > twice.txt "
               "&& mkdir -p parts splits/test splits/train && cp low.txt splits/test/0.txt && cp other.txt "
               "splits/train/0.txt && "
               "cp low.txt parts/train-0.txt && cp copy.txt parts/validation-0.txt && cp low.txt "
               "parts/README.md && echo '{\"text\": \"a\"}' >parts/more.jsonl && gzip -k parts/more.jsonl && tr ' ' "
               "'\\n' < corpus.txt | tac "
               "| tr '\\n' ' ' | sed 's/[.] /.\\n/g' > turned.txt && sed 's/$/\\r/' corpus.txt > returns.txt && tail "
               "-c 5001 "
               "corpus.txt > end.txt && tail -c 1000 corpus.txt > high.txt && mkdir books && cp high.txt low.txt books "
               "&& head -c -5001 "
               "corpus.txt > begin.txt && "
               "sed 's/\\x7/\\xe4\\xb8\\xad/g' sevens.txt > han.txt && "
               "for f in chars bytes; do { printf '\\223NUMPY\\001\\000\\166\\000'; printf '%-117s\\n' "
               "\"{'descr': '|u1', 'fortran_order': False, 'shape': (9000,), }\"; } > $f.npy; done; "
               "cat sevens.txt >> chars.npy && head -c 9000 corpus.txt >> bytes.npy && "
               "cp -r " GOLDEN_DIR "/llama empty && cd empty && "
               "head -c $((8 + $(od -An -tu8 -N8 model.safetensors))) model.safetensors > zeros && "
               "truncate -r model.safetensors zeros && mv zeros model.safetensors && "
               "cp -r . ../odd && sed -i 's/\"rms_norm_eps\": [0-9.e-]*/\"rms_norm_eps\": 0.5/; "
               "s/\"rope_theta\": [0-9.e-]*/\"rope_theta\": 1.0/; "
               "s/\"model_type\"/\"auto_map\": {\"AutoModelForCausalLM\": \"a.B\"}, &/' ../odd/config.json"),
        0);
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to toks/a corpus.txt"), 0);
    ck_assert_int_eq(system("{ head -c 9000 toks/a.bin; head -c 9000 /dev/zero; } > tail.bin; for i in $(seq 200); do "
                            "head -c $((24 * i)) toks/a.bin | tail -c 24; head -c 40 /dev/zero; done > rows.bin"),
                     0);
    write_file("lines.txt", "{\"text\": \"And the evening and the morning were the first day.\"}\n"
                            "{\"text\": \"And the evening and the morning were the second day.\"}\n");
    ck_assert_int_eq(
        system("for i in $(seq 99); do head -c $((50 * i)) corpus.txt | tail -c 50; echo; echo '<|endoftext|>'; "
               "done > ended.txt"),
        0);
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to toks/ended ended.txt"), 0);
    ck_assert_int_eq(system("sed 's/<|endoftext|>/<|last|>/g' " TOKENIZER " > no-end.json && yes '{\"text\": \"The "
                            "evening\\\\nThe morning\"}' | head -n 20 > escaped.jsonl"),
                     0);
    ck_assert_int_eq(
        system("for i in $(seq 20); do echo '{\"text\": \"<|im_start|>user 1 of '$i'.\"}'; echo '{\"text\": \"'$i' the "
               "evening?\"}'; echo '{\"text\": \"The {morning} of '$i'.\"}'; done > turns.jsonl && "
               "sed 's/\"!\":1,/\"<s>\":1,/' " TOKENIZER " > begins.json && "
               "sed 's/\"!\":1,/\"<unk>\":1,/; s/\"unk_token\":null/\"unk_token\":\"<unk>\"/; "
               "s/\"{\":91/\"\\u0222\":91/' " TOKENIZER " > lacking.json"),
        0);
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --append-eod --to toks/two low.txt turns.jsonl"),
                0);
    write_file("hot.jsonl", "{\"prompt\": \"a\", \"temperature\": 0}\n");
    write_file("blanks.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n{\"text\": \"\"}\n{\"text\": \"light\"}\n");
    ck_assert_int_eq(system("{ echo '<!DOCTYPE html>'; cat corpus.txt; } > page.txt && cp page.txt page.html"), 0);
    write_file("ring.json", "{\"heddle_tuning\": 1, \"rules\": [{\"op\": \"all_reduce\", \"use\": \"tree\"}, "
                            "{\"op\": \"all_reduce\", \"use\": \"ring\"}]}");
    write_file("behind.json", "{\"heddle_tuning\": 1, \"rules\": [{\"op\": \"all_reduce\", \"use\": \"slices\"}, "
                              "{\"op\": \"all_reduce\", \"bytes\": 64, \"use\": \"tree\"}]}");
    write_file("two.json", "{\"heddle_tuning\": 1, \"rules\": [{\"op\": \"all_reduce\", \"ranks\": 2, \"use\": "
                           "\"doubling\"}]}");
    ck_assert_int_eq(
        system("for i in $(seq 99); do echo '{\"messages\": [{\"role\": \"user\", \"content\": \"And the "
               "evening\"}, {\"role\": \"assistant\", \"content\": \"were the day\"}]}' >> talk.jsonl; echo "
               "'{\"prompt\": \"And the evening \", \"completion\": \"were the day\"}' >> ask.jsonl; done"),
        0);
    for (int k = 0; k < 2; k++)
        expect_code(command_run("data tokenize --tokenizer " QWEN_FILE " --chat-template chatml --to toks/%s %s.jsonl",
                                k ? "ask" : "talk", k ? "ask" : "talk"),
                    0);
    ck_assert_int_eq(system("sed 's/day/night<|endoftext|>/' ask.jsonl > own.jsonl"), 0);
    static const char *const ends[] = {"ends --append-eod ask", "none ask", "own own"};
    for (size_t k = 0; k < HD__COUNT(ends); k++)
        expect_code(
            command_run("data tokenize --tokenizer " TOKENIZER " --field completion --to toks/%s.jsonl", ends[k]), 0);
    ck_assert_int_eq(system("for f in bin idx loss meta.json; do cp toks/talk.$f toks/other.$f; done && "
                            "sed -i 's/chatml/mistral/' toks/other.meta.json && cp toks/a.meta.json "
                            "toks/stale.meta.json && cp toks/ask.bin toks/stale.bin && cp toks/ask.idx toks/stale.idx"),
                     0);
    ck_assert_int_eq(system("mkdir own pairs"), 0);
    static const char *const arrays[] = {"own/ids.npy",       "own/labels.npy",  "pairs/ids.npy",
                                         "pairs/train-0.npy", "pairs/val-0.npy", "pairs/labels.npy"};
    for (size_t i = 0; i < HD__COUNT(arrays); i++)
        write_array(arrays[i], i == HD__COUNT(arrays) - 1);
}

START_TEST(warnings)
{
    write_inputs();
    for (size_t i = 0; i < HD__COUNT(warned); i++) {
        struct command *c = command_run("%s", warned[i].words);
        ck_assert_msg(c->code == 0 && strstr(c->err, warned[i].want), "`%s`: exit code %d; it said:\n%s",
                      warned[i].words, c->code, c->err);
    }
    ck_assert_int_eq(system("echo hello | " HEDDLE " sample llama.yaml --random-weights --max-new 1 2>said"), 0);
    ck_assert_ptr_nonnull(strstr(read_file("said"), "standard input is not read: give --prompt TEXT or --prompt-file"));
    for (size_t i = 0; i < HD__COUNT(silent); i++) {
        struct command *c = command_run("train llama.yaml --dry-run %s", silent[i]);
        ck_assert_msg(c->code == 0 && !strstr(c->err, "warning: "), "`%s`: %s", silent[i], c->err);
    }
    struct command *printed = command_run("train llama.yaml --print-config");
    write_file("printed.yaml", printed->out);
    printed = command_run("train printed.yaml --dry-run"); /* its defaults are written now */
    ck_assert_msg(printed->code == 0 && !strstr(printed->err, "warning: "), "%s", printed->err);
    struct command *bare = command_run("sample " QWEN "--prompt a data.train=ask.jsonl data.tokenizer=" QWEN_FILE
                                       " data.chat_template=chatml");
    ck_assert_msg(bare->code == 0 && !strstr(bare->err, "chat"), "%s", bare->err);
    struct command *chats = command_run("data merge toks/talk toks/other --to toks/chats");
    expect_code(chats, 2);
    expect_says(chats, "toks/talk is rendered by the chat template chatml, and toks/other by mistral: a model would");
    write_file("ruled.jsonl", "{\"system\": \"Be brief.\", \"prompt\": \"a\"}\n");
    struct command *ruled = command_run("sample " QWEN "--prompt-file ruled.jsonl");
    expect_code(ruled, 2);
    expect_says(ruled, "--prompt-file ruled.jsonl:1: system: is not rendered");
    write_file("plain.ndjson", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    struct command *lines = command_run("sample " QWEN "--json --prompt-file plain.ndjson");
    ck_assert_msg(lines->code == 0 && strstr(lines->out, "\"prompt\": 1"), "%s%s", lines->out, lines->err);
    ck_assert_int_eq(system("gzip -k hot.jsonl && printf 'caf\\351' > latin.txt"), 0);
    expect_says(command_run("sample " QWEN "--prompt-file hot.jsonl.gz"),
                "hot.jsonl.gz: is packed (gzip, zstd): unpack");
    expect_says(command_run("sample " QWEN "--prompt-file latin.txt"),
                "--prompt-file latin.txt: is no text: a prompt is");
    struct command *four = command_run("explain llama.yaml mesh.dp={\"replicate\":2,\"shard\":2} plugins.path=" PIPES
                                       " comm.axes={\"dp\":\"pipes\",\"dp_shard\":\"shm\"}");
    ck_assert_msg(four->code == 0 && !strstr(four->err, "comm.axes.dp"), "%s", four->err);
    expect_once("train llama.yaml job.steps=1 data.train=unwritten.bin", "first tokens are all 0");
    expect_once("train llama.yaml job.steps=1 data.documents=mask data.eod=0", "no document ends");
    expect_once("check llama.yaml mesh.dp=2 checkpoint={} "
                "strategies=[{\"use\":\"zero\",\"stage\":2},{\"use\":\"ema\",\"decay\":0.1}]",
                "strategies.ema.decay is 0.1"); /* though the job is compiled again without its options */
    ck_assert_ptr_null(strstr(command_run("train llama.yaml job.steps=1 device.kernels=reference device.isa=avx2")->err,
                              "kernels for avx2"));
    expect_code(command_run("train epochs.yaml --dry-run model.vocab=320 data.tokenizer=" TOKENIZER
                            " data.train=texts data.cache=idle metrics.trace={\"file\":\"t.json\",\"steps\":\"2-3\"}"),
                0);                             /* their steps are not known yet */
    ck_assert_int_eq(system("rm -rf runs"), 0); /* other tests want none */
}
END_TEST

static struct command *on_cores(const char *environment, int ranks)
{
    struct command *c =
        command_run_env(environment ? environment : "A=b", "train llama.yaml --dry-run data.batch=%d%s%d", 2 * ranks,
                        environment ? " job.seed=" : " launch.ranks=", ranks);
    expect_code(c, 0);
    return c;
}

static void take_one_core(cpu_set_t *own)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    ck_assert_int_eq(sched_getaffinity(0, sizeof *own, own), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, own))
            CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

START_TEST(more_ranks_than_cores)
{
    int cores = hd__cpu_count(), all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    expect_says(on_cores(NULL, cores + 1),
                keep(hd__format("warning: command line: launch.ranks: %d ranks share the %d core%s %s", cores + 1,
                                cores, cores > 1 ? "s" : "", cores < all ? "that this process" : "of this machine")));
    ck_assert_ptr_null(strstr(on_cores(NULL, cores)->err, "take turns"));
    char *words = keep(hd__format("--ranks %d: this machine has %d core", cores + 1, cores));
    expect_says(command_run("bench --op all_reduce -b 8 -e 8 -n 1 --ranks %d", cores + 1), words);
    expect_says(
        command_run("bench --train llama.yaml --steps 1 --warmup 0 data.batch=%d --ranks %d", 2 * cores + 2, cores + 1),
        words);
    cpu_set_t own;
    take_one_core(&own);
    if (all > 1)
        expect_says(on_cores(NULL, 2), "2 ranks share the 1 core that this process may use (taskset or --cpus-per-task "
                                       "leave it no more), and take turns: start at most 1 here");
    ck_assert_int_eq(sched_setaffinity(0, sizeof own, &own), 0);
    for (int rank = 0; rank < 2;
         rank++) { /* a launcher binds ranks to cores of their own: all count, and one says it */
        struct command *c = on_cores(
            keep(hd__format("RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=29400", rank, all + 1)), all + 1);
        ck_assert_msg((strstr(c->err, "take turns") != NULL) == !rank, "rank %d: %s", rank, c->err);
    }
    ck_assert_ptr_null(strstr(
        on_cores(keep(hd__format("RANK=0 WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=29400", all)), all)->err,
        "take turns"));
}
END_TEST

START_TEST(more_threads_than_cores)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct command *c = command_run("train llama.yaml job.steps=1 job.name=both mesh.dp=2 device.threads=%ld", cores);
    char *want =
        hd__format("device.threads: %ld threads share the %ld cores of this machine, %ld of each of its 2 ranks",
                   2 * cores, cores, cores);
    const char *first = strstr(c->err, want);
    ck_assert_msg(c->code == 0 && first && !strstr(first + 1, want), "exit code %d; it said:\n%s", c->code, c->err);
    free(want);
    cpu_set_t own;
    take_one_core(&own);
    c = command_run("train llama.yaml job.steps=1 job.name=bound launch.ranks=1 device.threads=2");
    if (cores > 1)
        expect_says(c, "device.threads: 2 threads share the 1 core that this process may use (taskset or ");
    ck_assert_int_eq(sched_setaffinity(0, sizeof own, &own), 0);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"warnings", warnings, 1},
                                        {"more ranks than cores", more_ranks_than_cores, 1},
                                        {"more threads than cores", more_threads_than_cores, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-warnings", tests);
}
