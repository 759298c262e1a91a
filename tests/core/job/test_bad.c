/* Jobs that must be refused, each in its own words: place, what is wrong, what would be right. */
#include "tests/core/job/common.h"
#include "tests/suite.h"

#include <unistd.h>

/* `override` is applied to full_job where `text` is NULL. */
struct bad {
    const char *text;
    const char *override;
    const char *want;
};

#define REST "optimizer: {use: sgd}\nmodel: {use: t}\ndata: {train: a, seq_len: 8, batch: 4}\n"
#define JOB "job: {steps: 9}\n"

/* ---- what YAML is not, and what of YAML a job is not */
static const struct bad files[] = {
    {"", NULL, "job.yaml:1:1: empty: a mapping of keys is wanted"},
    {"# nothing\n", NULL, "job.yaml:1:1: empty: a mapping of keys is wanted"},
    {"just words\n", NULL, "job.yaml:1:1: a job is a mapping of sections, not a single value"},
    {"- a\n- b\n", NULL, "job.yaml:1:1: a job is a mapping of sections, not a list"},
    {"job:\n\tsteps: 3\n", NULL,
     "job.yaml:2:1: while scanning for the next token, found character that cannot start any token; a tab, "
     "or a character such as "
     "% @ `: indent with spaces, quote the value"},
    {"job: {steps: 3\n", NULL,
     "job.yaml:2:1: while parsing a flow mapping, did not find expected ',' or '}'; it begins at "
     "line 1: is its end left out, or behind a #? A value with { } [ ] needs quotes"},
    {"job: {name: ${HOME}}\n", NULL,
     "job.yaml:1:14: while parsing a flow mapping, did not find expected ',' or '}'; it begins at line 1: is its end "
     "left out, or behind a #? A value with { } [ ] needs quotes"},
    {"data: {train: [*.txt]}\n", NULL,
     "job.yaml:1:17: while scanning an alias, did not find expected alphabetic or numeric character; a value that "
     "begins with * or & needs quotes"},
    {"data: {train: \"C:\\data\"}\n", NULL,
     "job.yaml:1:18: while parsing a quoted scalar, found unknown escape character; in double quotes \\ begins an "
     "escape: write 'single quotes'"},
    {"job: {name: \"x, steps: 3}\nmesh: {tp: 1}\n", NULL,
     "job.yaml:3:1: while scanning a quoted scalar, found unexpected end of stream; the quote at line 1 is not closed"},
    {"job:\n  - name: x\n  steps: 3\n", NULL,
     "job.yaml:3:3: while parsing a block collection, did not find expected '-' indicator; the items of a list begin "
     "with - in one column"},
    {"[job]\nsteps = 3\n", NULL,
     "job.yaml:2:1: did not find expected <document start>; a job is YAML: `section: {key: value}`"},
    {"job: {name:\u00a0x}\n", NULL, "job.yaml:1:7: a blank of another kind, U+00A0: type it anew, or quote the value"},
    {"job: {steps: \ufeff3}\n", NULL,
     "job.yaml:1:14: a blank of another kind, U+FEFF: type it anew, or quote the value"},
    {"job: a: b\n", NULL,
     "job.yaml:1:7: mapping values are not allowed in this context; a value with ': ' in it needs quotes, "
     "{key: value} needs braces "
     "on one line; or is this line indented too far?"},
    {"job\nmesh: 3\n", NULL,
     "job.yaml:2:5: mapping values are not allowed in this context; a value with ': ' in it needs quotes, "
     "{key: value} needs braces "
     "on one line; or is this line indented too far?"},
    {"job: {steps: 3}\nmesh\ndata: {}\n", NULL,
     "job.yaml:3:1: while scanning a simple key, could not find expected ':'; a key needs a colon and a "
     "space before its value"},
    {"job: \"\xff\"\n", NULL, "job.yaml:1:7: not UTF-8 text (byte 6: invalid leading UTF-8 octet): save it as UTF-8"},
    {"job: \x01\n", NULL, "job.yaml:1:6: not UTF-8 text (byte 5: control characters are not allowed)"},
    {"job: &a {steps: 3}\n", NULL, "job.yaml:1:6: anchors (&name) are not supported: write the value out"},
    {"job: {steps: 3}\nmesh: *a\n", NULL, "job.yaml:2:7: aliases (*name) are not supported: write the value out"},
    {"job: {steps: !!int 3}\n", NULL, "job.yaml:1:14: tags (!name) are not supported: the key says the type"},
    {"job: {<<: {steps: 3}}\n", NULL, "job.yaml:1:7: merge keys (<<) are not supported"},
    {"job: {steps: 3,\n  steps: 4}\n", NULL, "job.yaml:2:3: steps was already given at line 1"},
    {JOB REST JOB, NULL, "job.yaml:5:1: job was already given at line 1"},
    {"? [a]\n: b\n", NULL, "job.yaml:1:3: a key must be a single word"},
    {JOB REST "---\n" JOB, NULL, "job.yaml:5:1: a second document: a job is one document"},
    {"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", NULL, "job.yaml:1:17: nested more than 16 deep"},
    {"job: {name: \"a\\0b\"}\n", NULL, "job.yaml:1:13: a value with a zero byte in it"},
};

/* ---- sections and keys */
static const struct bad keys[] = {
    {JOB "model: {use: t}\ndata: {train: a, seq_len: 8, batch: 4}\n", NULL,
     "job.yaml:1:1: section optimizer is missing; it needs use, the name of a plugin of kind optim"},
    {REST, NULL, "job.yaml:1:1: section job is missing; it needs steps or epochs"},
    {JOB "optimizer: {use: sgd}\nmodel: {use: t}\n", NULL,
     "job.yaml:1:1: section data is missing; it needs train, seq_len, batch"},
    {"job: {name: x}\n" REST, NULL, "job.yaml:1:1: job needs steps (optimizer steps to train) or epochs"},
    {JOB "optimizer: {use: sgd}\nmodel: {use: t}\ndata:\n  seq_len: 3\n", NULL,
     "job.yaml:4:1: data needs train, batch"},
    {JOB "optimizer: {lr: 1}\nmodel: {use: t}\ndata: {train: a, seq_len: 8, batch: 4}\n", NULL,
     "job.yaml:2:1: optimizer needs use, the name of a plugin of kind optim"},
    {NULL, "strategies=[{zero: {stage: 3}}]",
     "command line: strategies.0 needs use, the name of a plugin of kind strategy: write {use: zero, ...}"},
    {JOB REST "optimzer: {use: adamw}\n", NULL, "job.yaml:5:1: unknown section optimzer; did you mean optimizer?"},
    {JOB REST "whatever_it_is: 3\n", NULL,
     "job.yaml:5:1: unknown section whatever_it_is; the sections are job, launch, plugins, device, liveness, comm, "
     "mesh, strategies, optimizer, "
     "schedule, model, data, eval, precision, recompute, checkpoint, metrics, watch"},
    {JOB REST "mesh:\n", NULL, "job.yaml:5:1: mesh has no value; leave it out for the defaults"},
    {JOB REST "checkpoint:\n", NULL, "job.yaml:5:1: checkpoint has no value; write `checkpoint: {}` for the defaults"},
    {JOB REST "mesh: ~\n", NULL, "job.yaml:5:1: mesh has no value; leave it out for the defaults"},
    {JOB REST "mesh: auto\n", "mesh.tp=2",
     "command line: 'mesh.tp=2': mesh is auto: to say its axes write mesh={tp: ...}"},
    {JOB REST "mesh: [1, 2]\n", NULL, "job.yaml:5:7: mesh is a list where a mapping is wanted: {pp: ...}"},
    {NULL, "model=llama",
     "command line: model is a single value where a mapping is wanted: {use: transformer, family: llama}"},
    {NULL, "data=corpus.txt", "command line: data is a single value where a mapping is wanted: {train: corpus.txt}"},
    {JOB REST "comm: shm\n", NULL, "job.yaml:5:7: comm is a single value where a mapping is wanted: {use: shm}"},
    {JOB REST "schedule: {kind: cosin}\n", NULL,
     "job.yaml:5:18: schedule.kind: 'cosin' is none of constant, linear, cosine, wsd; did you mean cosine?"},
    {JOB REST "schedule: {kind: }\n", NULL,
     "job.yaml:5:18: schedule.kind has no value; leave the key out for the default"},
    {JOB REST "schedule: {kind: [cosine]}\n", NULL,
     "job.yaml:5:18: schedule.kind is a list where one value of type enum is wanted"},
    {JOB REST "eval:\n  evry: 3\n", NULL, "job.yaml:6:3: eval: unknown key evry; did you mean every?"},
    {JOB REST "eval:\n  something: 3\n", NULL,
     "job.yaml:6:3: eval: unknown key something; the keys are every, batches"},
    {JOB REST "mesh: {tp: 0}\n", NULL, "job.yaml:5:12: mesh.tp: 0 is out of range: 1 to 1048576"},
    {JOB REST "mesh: {tp: auto}\n", NULL, "job.yaml:5:12: mesh.tp: 'auto': only mesh.dp may be auto"},
    {JOB "optimizer: {use: sgd}\nmodel: {use: t}\ndata: {train: a, sequence_len: 8, batch: 4}\n", NULL,
     "job.yaml:4:18: data: unknown key sequence_len; did you mean seq_len?"}, /* whatever keys the plugin has */
    {JOB "optimizer: {use: sgd}\nmodel: {use: t}\ndata: {train: a, seq_len: 8, batch: 4, global_batch: 4}\n", NULL,
     "job.yaml:4:40: data: global_batch was already given at job.yaml:4:37"},
    {JOB REST "liveness: {dead_after: 3s}\ncomm: {dead_after: 2s}\n", NULL,
     "job.yaml:6:20: comm.dead_after: liveness.dead_after, which is the same, was already given at job.yaml:5:24: "
     "leave "
     "one of them out"},
    {NULL, "job.steps=1.5", "command line: job.steps: '1.5' is not a whole number of steps"},
    {NULL, "schedule.warmup=0.1", "command line: schedule.warmup: '0.1' is not a whole number of steps"},
    {"job: {name: x, steps: 1,000}\n" REST, NULL,
     "job.yaml:1:25: job: unknown key 000; a number has no commas: 1000 or 1_000, not 1,000; a list is written [A, B]"},
    {JOB REST "zero_optimization: {stage: 2}\n", NULL,
     "job.yaml:5:1: unknown section zero_optimization; in a configuration of DeepSpeed's: `heddle import FILE` makes a "
     "job of it"},
    {NULL, "job.name=../../etc",
     "command line: job.name: '../../etc' names a folder: use at most 100 letters, digits, . _ and -, and do not begin "
     "with a dot"},
    {NULL, "job.steps=9223372036854775807",
     "command line: job.steps: 9223372036854775807 steps of data.batch 32 x data.seq_len 256 tokens are too many to "
     "count"},
    {NULL, "checkpoint.resume=Auto",
     "command line: checkpoint.resume: did you mean auto? A folder called Auto is written ./Auto"},
    {NULL, "metrics.tensorboard=true",
     "command line: metrics.tensorboard: 'true' is no name of a file: leave the key out, or write ./true"},
    {NULL, "metrics.jsonl=none",
     "command line: metrics.jsonl: 'none' is no name of a file: leave the key out, or write ./none"},
    {NULL, "metrics.tensorboard=None",
     "command line: metrics.tensorboard: 'None' is no name of a file: leave the key out, or write ./None"},
    {JOB REST "metrics: {blocks: no}\n", NULL,
     "job.yaml:5:19: metrics.blocks: 'no' is no name of a file: leave the key out, or write ./no"},
    {JOB REST "metrics: {trace: {file: off}}\n", NULL,
     "job.yaml:5:25: metrics.trace.file: 'off' is no name of a file: leave the key out, or write ./off"},
    {NULL, "checkpoint.dir=null",
     "command line: checkpoint.dir: 'null' is no name of a file: leave the key out, or write ./null"},
    {NULL, "checkpoint.dir=ck/run-$SLURM_ARRAY_TASK_ID",
     "command line: checkpoint.dir: 'ck/run-$SLURM_ARRAY_TASK_ID': ~, $ and ` are not expanded: write the whole path"},
    {NULL, "checkpoint.dir=ck/$(date +%F)",
     "command line: checkpoint.dir: 'ck/$(date +%F)': ~, $ and ` are not expanded: write the whole path"},
    {NULL, "metrics.jsonl=logs/`date`.jsonl",
     "command line: metrics.jsonl: 'logs/`date`.jsonl': ~, $ and ` are not expanded: write the whole path"},
    {NULL, "schedule.min_lr=1e\u22123",
     "command line: schedule.min_lr: '1e\u22123' is not a number: it has a character beyond ASCII, as a long minus is: "
     "type it anew"},
    {NULL, "job.steps=\u0661",
     "command line: job.steps: '\u0661' is not a whole number: it has a character beyond ASCII, as a long minus is: "
     "type it anew"},
    {NULL, "job.seed=-1", "command line: job.seed: -1 is too small: at least 0"},
    {NULL, "comm.timeout=5 years",
     "command line: comm.timeout: '5 years': unknown unit; allowed are us, ms, s, m, h, d"},
    {NULL, "launch.time_limit=00:30:00",
     "command line: launch.time_limit: '00:30:00': write one number with its unit, as 90s, 30m or 1.5h"},
    {NULL, "plugins.path=[[a]]", "command line: plugins.path: an item is a list where a single value is wanted"},
    {NULL, "plugins.path={a: b}", "command line: plugins.path is a mapping where a list is wanted"},
    {NULL, "checkpoint.dir=S3://bucket/y",
     "command line: checkpoint.dir: 'S3://bucket/y' is no s3://BUCKET/PREFIX: did you mean s3://bucket/y?"},
    {NULL, "checkpoint.resume=a+b://bucket/y",
     "command line: checkpoint.resume: 'a+b://bucket/y': lower-case letters and digits are wanted before ://, as in "
     "s3:// of ckpt-s3"},
    {NULL, "metrics.jsonl=s3://b/m.jsonl",
     "command line: metrics.jsonl: 's3://b/m.jsonl' is a URL; object stores are not supported here: name a file or "
     "folder, which may be a mounted one"},
    {NULL, "data.shuffle=maybe", "command line: data.shuffle: 'maybe' is neither true nor false"},
    {NULL, "optimizer.use=../evil",
     "command line: optimizer: '../evil' is no plugin's name (lower-case letters, digits, _ and -)"},
    {NULL, "optimizer.use=[a]", "command line: optimizer.use: the name of a plugin of kind optim is wanted"},
};

/* ---- values with readers of their own */
static const struct bad specials[] = {
    {NULL, "mesh.dp=lots", "command line: mesh.dp: 'lots' is not a whole number"},
    {NULL, "mesh.dp=[2]", "command line: mesh.dp is a list where a number, auto or {replicate: R, shard: S} is wanted"},
    {NULL, "mesh.dp={replicate: 2, shards: 2}",
     "command line: mesh.dp: unknown key shards; the keys are replicate and shard"},
    {NULL, "mesh.dp={replicate: auto, shard: auto}", "command line: mesh.dp: replicate and shard cannot both be auto"},
    {NULL, "metrics.sinks=lines",
     "command line: metrics.sinks is a single value where a list is wanted: [{use: NAME, ...}]"},
    {NULL, "metrics.sinks=[{path: x}]",
     "command line: metrics.sinks.0 needs use, the name of a plugin of kind metrics"},
    {NULL, "metrics.sinks=[[lines]]", "command line: metrics.sinks.0: a name or {use: NAME, ...} is wanted"},
    {NULL, "metrics.sinks=[jsonl, lines, jsonl]",
     "command line: metrics.sinks: jsonl was already given at command line"},
    {NULL, "metrics.sinks=[jsonl, {use: jsonl}]",
     "command line: metrics.sinks: jsonl was already given at command line"},
    {NULL, "metrics.sinks=[{use: jsonl, path: m.jsonl}]",
     "command line: metrics.sinks.0: jsonl has no keys here: metrics.jsonl names its file"},
    {JOB REST "metrics: {sinks: [jsonl, jsonl]}\n", NULL,
     "job.yaml:5:26: metrics.sinks: jsonl was already given at job.yaml:5:19"},
    {NULL, "metrics.tensorboard=[tb]", "command line: metrics.tensorboard is a list where a folder is wanted"},
    {NULL, "data.train=[]", "command line: data.train is an empty list"},
    {NULL, "data.train=[{path: a}, {path: b, weight: 1}]",
     "command line: data.train: either every file has a weight or none"},
    {NULL, "data.train=[{weight: 1}]", "command line: data.train: path is missing"},
    {NULL, "data.train=[{path: a, weight: -1}]",
     "command line: data.train: weight: -1 is out of range: 1e-09 to 1000000000"},
    {NULL, "data.train=[{path: a, wait: 1}]",
     "command line: data.train: unknown key wait; the keys are path and weight"},
    {NULL, "data.train=[[a]]", "command line: data.train: a file name or {path: FILE, weight: W} is wanted"},
    {NULL, "comm.axes=[dp]", "command line: comm.axes is a list where {dp: mpi} is wanted"},
    {NULL, "comm.axes.xp=mpi",
     "command line: comm.axes: unknown axis xp; the axes are pp, dp, dp_replicate, dp_shard, cp, ep, tp"},
    {NULL, "comm.axes.dp=[mpi]", "command line: comm.axes.dp: a name or {use: NAME, ...} is wanted"},
    {NULL, "comm.axes.dp={stage: 1}", "command line: comm.axes.dp needs use, the name of a plugin of kind comm"},
    {NULL, "comm.hooks=check", "command line: comm.hooks is a single value where a list is wanted: [check, trace]"},
    {NULL, "comm.hooks=[Check]",
     "command line: comm.hooks.0: 'Check' is no plugin's name (lower-case letters, digits, _ and -)"},
    {NULL, "comm.levels=numma",
     "command line: comm.levels: 'numma' is none of machine, package, numa; did you mean numa?"},
    {NULL, "comm.levels=[]", "command line: comm.levels is empty; leave the key out for the default"},
    {NULL, "comm.levels=[numa, machine]",
     "command line: comm.levels: machine, package, numa are wanted in this order, once each"},
    {NULL, "comm.levels=[numa, numa]",
     "command line: comm.levels: machine, package, numa are wanted in this order, once each"},
    {NULL, "comm.levels={numa: 2}", "command line: comm.levels is a mapping where one value of type enum is wanted"},
    {NULL, "strategies=zero",
     "command line: strategies is a single value where a list is wanted: [{use: zero, stage: 1}]"},
    {NULL, "strategies=[]", "command line: strategies is empty; leave it out for [{use: zero, stage: 0}]"},
    {NULL, "strategies=[zero]", "command line: a strategy is a single value where {use: NAME, ...} is wanted"},
    {NULL, "strategies=[{stage: 1}]", "command line: strategies.0 needs use, the name of a plugin of kind strategy"},
    {NULL, "precision.compute=fp8",
     "command line: precision.compute: 'fp8': products in 8 bits are an option of a device: device.fp8, where its "
     "plugin has it"},
    {NULL, "precision.compute=bf17",
     "command line: precision.compute: 'bf17' is none of fp32, bf16, fp16, fp64; did you mean bf16?"},
    {NULL, "schedule.kind=inverse_sqrt",
     "command line: schedule.kind: 'inverse_sqrt': not offered; cosine and wsd also fall from a peak"},
    {NULL, "strategies=[{use: zero}, {use: ema}, {use: zero, stage: 3}]",
     "command line: strategies: zero is already listed, at command line: merge the two"},
    {JOB REST "strategies:\n  - use: 3d\n  - use: zero\n  - use: 3d\n", NULL,
     "job.yaml:8:10: strategies: 3d is already listed, at job.yaml:6:10: merge the two"},
    {NULL, "precision.loss_scale=big",
     "command line: precision.loss_scale: auto, none, dynamic or a number from 1 to 2^40 (1.1e12) is wanted"},
    {NULL, "recompute=ful",
     "command line: recompute: 'ful' is none of none, selective, full; did you mean full?; or {every: N}"},
    {NULL, "recompute.every=0", "command line: recompute.every: 0 is out of range: 1 to 1000000"},
    {NULL, "recompute={often: 1}", "command line: recompute: unknown key often; the key is every"},
    {NULL, "recompute={}", "command line: recompute: {every: N} is wanted"},
    {JOB REST "recompute: [full]\n", NULL,
     "job.yaml:5:12: recompute is a list where none, selective, full or {every: N} is wanted"},
};

/* ---- the command line */
static const struct bad words[] = {
    {NULL, "optimizer.lr", "command line: 'optimizer.lr' is not key=value, like optimizer.lr=1e-3"},
    {NULL, "=3", "command line: '=3' is not key=value, like optimizer.lr=1e-3"},
    {NULL, "data.batch=", "command line: 'data.batch=' has no value"},
    {NULL, "data..batch=3", "command line: 'data..batch=3': an empty key"},
    {NULL, "data.=3", "command line: 'data.=3': an empty key"},
    {NULL, "strategies.zer.stage=1",
     "command line: 'strategies.zer.stage=1': no item zer in the job; did you mean zero?"},
    {NULL, "optimizer.lr = 1", "command line: 'optimizer.lr = 1': no blanks around =, as in optimizer.lr=1e-3"},
    {NULL, "optimizer.lr= 1", "command line: 'optimizer.lr= 1': no blanks around =, as in optimizer.lr=1e-3"},
    {NULL, "data.global_batch=many", "command line: data.batch: 'many' is not a whole number"},
    {NULL, "strategies.7.stage=1", "command line: 'strategies.7.stage=1': no item 7 in the job; there is 3d, zero"},
    {NULL, "mesh.dp={replicate: 2",
     "command line: 'mesh.dp={replicate: 2': while parsing a flow mapping, did not find expected ',' or '}'; is its "
     "end left out? A value with { } [ ] needs quotes"},
    {NULL, "mesh.dp={tp: &a 2}",
     "command line: 'mesh.dp={tp: &a 2}': anchors (&name) are not supported: write the value out"},
    {NULL, "model.a.b.c.d.e.f.g.h.i.j.k.l.m.n.o=1",
     "command line: 'model.a.b.c.d.e.f.g.h.i.j.k.l.m.n.o=1': nested more than 16 deep"},
    {NULL, "model.a.b.c.d.e.f.g.h.i.j.k.l.m={n: {o: 1}}",
     "command line: 'model.a.b.c.d.e.f.g.h.i.j.k.l.m={n: {o: 1}}': nested more than 16 deep"},
    {NULL, "mash.tp=2", "command line: unknown section mash; did you mean mesh?"},
    {NULL, "data.batch.size=2", "command line: data.batch is a mapping where one value of type int is wanted"},
};

/* ---- what the keys say together */
static const struct bad rules[] = {
    {NULL, "data.val_fraction=0.1", "command line: data.val_fraction: data.val is given too; say one of them"},
    {JOB REST "eval: {every: 3}\n", NULL,
     "job.yaml:5:15: eval.every: nothing to evaluate on; say data.val or data.val_fraction"},
    {NULL, "schedule.warmup=301", "command line: schedule.warmup: 301 steps are more than job.steps, 300"},
    {NULL, "schedule={kind: wsd, warmup: 200, decay: 200}",
     "command line: schedule.decay: warmup 200 + decay 200 are more than job.steps, 300"},
    {NULL, "schedule={min_lr: 1e-5}",
     "command line: schedule.min_lr: a constant schedule never comes down; say kind: linear, cosine or wsd"},
    {NULL, "schedule.decay=10", "command line: schedule.decay: only kind: wsd has it"},
    {NULL, "schedule.decay_shape=sqrt", "command line: schedule.decay_shape: only kind: wsd has it"},
};

/* ---- the mesh: full_job has tp 2, launch.ranks 4, batch 32, micro_batch 4 */
static const struct {
    const char *override;
    int64_t ranks;
    const char *want;
} meshes[] = {
    {NULL, 5,
     "job.yaml:6:1: mesh: 5 ranks cannot be cut into pp 1 x dp auto x cp 1 x ep 1 x tp 2; the product must "
     "be the number of "
     "ranks; nearest that work: mesh.tp=1, mesh.tp=5, ranks 4, ranks 6"},
    {"mesh.tp=4", 6,
     "job.yaml:6:1: mesh: 6 ranks cannot be cut into pp 1 x dp auto x cp 1 x ep 1 x tp 4; the product must "
     "be the "
     "number of ranks; nearest that work: mesh.tp=3, mesh.tp=6, ranks 4, ranks 8"},
    {"mesh={tp: 3, dp: 2}", 8,
     "command line: mesh: 8 ranks are not pp 1 x dp 2 x cp 1 x ep 1 x tp 3; the product must be the number "
     "of ranks; nearest that "
     "work: mesh.tp=4, ranks 6"},
    {"mesh={tp: 2, dp: {replicate: 2, shard: 2}}", 12,
     "command line: mesh: 12 ranks are not pp 1 x dp_replicate 2 x dp_shard 2 x cp 1 x ep 1 x tp 2; the "
     "product must be the number of "
     "ranks; nearest that work: mesh.tp=3, mesh.dp.shard=3, mesh.dp.replicate=3, ranks 8"},
    {"mesh={tp: 1000000, pp: 1000000}", 4,
     "command line: mesh: pp 1000000 x dp auto x cp 1 x ep 1 x tp 1000000 are more than 16777216 "
     "ranks"},
    {NULL, -4, "job.yaml:6:1: mesh: -4 is no possible number of ranks"},
    {"mesh={cp: 3}", 3, "job.yaml:19:12: data.seq_len: 256 cannot be cut into mesh.cp = 3 equal parts"},
    {NULL, 6,
     "job.yaml:20:10: data.batch: 32 is no multiple of micro_batch 4 x dp 3 x ep 1 = 12; nearest that work: "
     "data.batch=24, "
     "data.batch=36, ranks 4; or data.pad_batch=always, with empty sequences"},
    {"data.micro_batch=3", 4,
     "job.yaml:20:10: data.batch: 32 is no multiple of micro_batch 3 x dp 2 x ep 1 = 6; nearest that work: "
     "data.batch=30, data.batch=36, data.micro_batch=2, data.micro_batch=4; or data.pad_batch=always, with empty "
     "sequences"},
    {"data.micro_batches=[3, 3, 2]", 4,
     "command line: data.micro_batches: 3 numbers, and mesh.dp is 2: say one for each of its ranks"},
    {"data.micro_batches=[5, 4]", 4,
     "job.yaml:20:10: data.batch: 32 is not 36, the 9 micro-batches of data.micro_batches x micro_batch 4 x ep 1: "
     "say data.batch=36"},
    {"data.micro_batches=[12, 4]", 4,
     "job.yaml:20:10: data.batch: 32 is not 64, the 16 micro-batches of data.micro_batches x micro_batch 4 x ep 1: "
     "say data.micro_batch=2, or data.batch=64"},
    {"data.batch=2", 4,
     "command line: data.batch: 2 is no multiple of micro_batch 4 x dp 2 x ep 1 = 8; nearest that work: "
     "data.batch=8, data.micro_batch=1; or data.pad_batch=always, with empty sequences"},
};

static void check(const struct bad *bad)
{
    ck_assert_str_eq(refusal(bad->text ? bad->text : full_job, bad->override, 4), bad->want);
}

START_TEST(bad_file)
{
    check(&files[_i]);
}
END_TEST

START_TEST(bad_key)
{
    check(&keys[_i]);
}
END_TEST

START_TEST(bad_special)
{
    check(&specials[_i]);
}
END_TEST

START_TEST(bad_word)
{
    check(&words[_i]);
}
END_TEST

START_TEST(bad_rule)
{
    check(&rules[_i]);
}
END_TEST

START_TEST(bad_mesh)
{
    ck_assert_str_eq(refusal(full_job, meshes[_i].override, meshes[_i].ranks), meshes[_i].want);
}
END_TEST

/* Fewer ranks are a remedy where the mesh leaves dp open. */
START_TEST(too_many_ranks)
{
    ck_assert_str_eq(refusal(JOB REST, NULL, 64),
                     "job.yaml:4:37: data.batch: 4 is no multiple of dp 64 x ep 1 = 64; nearest that work: "
                     "data.batch=64, ranks 4; or data.pad_batch=always, with empty sequences");
    ck_assert_str_eq(refusal(JOB REST "mesh: {tp: 2}\n", "data.micro_batch=2", 64),
                     "job.yaml:4:37: data.batch: 4 is no multiple of micro_batch 2 x dp 32 x ep 1 = 64; nearest that "
                     "work: data.batch=64, ranks 4; or data.pad_batch=always, with empty sequences");
    ck_assert_str_eq(refusal(JOB REST "mesh: {dp: 8}\n", NULL, 8),
                     "job.yaml:4:37: data.batch: 4 is no multiple of dp 8 x ep 1 = 8; nearest that work: data.batch=8; "
                     "or data.pad_batch=always, with empty sequences");
}
END_TEST

/* ---- several mistakes */

static void expect_mistakes(const char *text, const char *const *words, size_t n, const char *want)
{
    char path[] = "/tmp/heddle-bad-XXXXXX";
    int file = mkstemp(path);
    struct hd__job *job = NULL;
    struct hd__text all = {0}, named = {0};
    struct plugin_settings s;
    ck_assert_int_eq((int)write(file, text, strlen(text)), (int)strlen(text));
    close(file);
    ck_assert_int_eq(hd__job_open(path, words, n, &job, &err), HD_OK);
    unlink(path);
    if (job->optimizer)
        parse_section(job, job->optimizer, &s);
    hd__job_mistakes_text(job, &all);
    for (const char *at = want; *at; at++) /* @: the file */
        if (*at == '@')
            hd__text_add(&named, "%s", path);
        else
            hd__text_add(&named, "%c", *at);
    ck_assert_str_eq(all.at, named.at);
    hd__text_free(&all);
    hd__text_free(&named);
    hd__job_free(job);
}

/* In the order of the file, those of plugins' tables among them; what follows from a mistake is left out. */
START_TEST(all_at_once)
{
    static const char *const words[] = {"data.suffle=no", "data.shuffle=maybe", "mash.tp=2"};
    expect_mistakes("job: {steps: x, sede: 3}\n"
                    "optimizer: {use: sgd, lr: y, stage: 10, lrr: 3}\n"
                    "modle: {use: t}\n"
                    "data: {train: a, seq_lem: 8, batch: 1.5}\n"
                    "precision: [bf16]\n"
                    "eval: {every: 1e2}\n",
                    words, 2,
                    "@:1:14: job.steps: 'x' is not a whole number\n"
                    "@:1:17: job: unknown key sede; did you mean seed?\n"
                    "@:2:27: optimizer.lr: 'y' is not a number\n"
                    "@:2:37: optimizer.stage: 10 is out of range: 0 to 9\n"
                    "@:2:41: optimizer: unknown key lrr; did you mean lr?\n"
                    "@:3:1: unknown section modle; did you mean model?\n"
                    "@:4:18: data: unknown key seq_lem; did you mean seq_len?\n"
                    "@:4:37: data.batch: '1.5' is not a whole number of sequences\n"
                    "@:5:12: precision is a list where a mapping is wanted: {compute: ...}\n"
                    "command line: data.shuffle: 'maybe' is neither true nor false");
    expect_mistakes(JOB REST, words + 2, 1, "command line: unknown section mash; did you mean mesh?");
}
END_TEST

START_TEST(at_most_twenty)
{
    struct hd__text job = {0}, want = {0};
    hd__text_add(&job, "eval:\n");
    for (int i = 0; i < 25; i++)
        hd__text_add(&job, "  every%02dx: 3\n", i);
    hd__text_add(&job, JOB REST);
    for (int i = 0; i < 20; i++)
        hd__text_add(&want, "@:%d:3: eval: unknown key every%02dx; did you mean every?\n", i + 2, i);
    hd__text_add(&want, "@: and 5 more");
    expect_mistakes(job.at, NULL, 0, want.at);
    hd__text_free(&job);
    hd__text_free(&want);
}
END_TEST

/* Without micro_batch the rule is shorter. */
START_TEST(bad_batch)
{
    ck_assert_str_eq(refusal(JOB REST, NULL, 3),
                     "job.yaml:4:37: data.batch: 4 is no multiple of dp 3 x ep 1 = 3; nearest that work: "
                     "data.batch=3, data.batch=6, ranks 2; or data.pad_batch=always, with empty sequences");
}
END_TEST

/* ---- plugins' sections */

START_TEST(bad_section)
{
    static const struct {
        const char *override, *want;
    } cases[] = {
        {"strategies.zero.stge=1", "command line: strategies.zero: unknown key stge; did you mean stage?"},
        {"strategies.zero.stage=10", "command line: strategies.zero.stage: 10 is out of range: 0 to 9"},
        {"strategies.zero.zero_stage=1", NULL}, /* an alias, and the command line wins */
        {"strategies.zero.order=1f1",
         "command line: strategies.zero.order: '1f1' is none of gpipe, 1f1b; did you mean 1f1b?"},
        {"strategies.zero.overlap=", "command line: 'strategies.zero.overlap=' has no value"},
        {"strategies.zero.offload.pth=1",
         "command line: strategies.zero: unknown key offload.pth; did you mean offload.path?"},
        {"strategies.zero.offload=x",
         "command line: strategies.zero.offload is a mapping, with the keys path: write offload: {path: ...}"},
        {"strategies.zero.whatever=x", "command line: strategies.zero: unknown key whatever; the keys are lr, "
                                       "betas, stage, bucket, order, overlap, offload.path, use"},
        {"strategies.zero.order=1F1B", NULL},
        {"strategies.zero.graph=static", NULL},
        {"strategies.zero.graph=dynamic", "command line: strategies.zero.graph: there is only static: all is compiled; "
                                          "leave the key out"},
        {"strategies.zero.zero_stage=most", "command line: strategies.zero.zero_stage: 'most': say how many"},
        {"strategies.zero.stage=all",
         "command line: strategies.zero.stage: 'all' is not a whole number"}, /* a word of the alias alone */
        {"strategies.zero.bucket={a: 1}",
         "command line: strategies.zero.bucket is a mapping where one value of type size is wanted"},
    };
    struct hd__job *job = NULL;
    struct plugin_settings s;
    int32_t rc = hd__job_parse("job.yaml", full_job, strlen(full_job), &cases[_i].override, 1, &job, &err);
    if (!rc)
        rc = parse_section(job, job->strategies[1], &s);
    if (cases[_i].want) {
        ck_assert_int_eq(rc, HD_E_INVALID);
        ck_assert_str_eq(err.message, cases[_i].want);
    } else {
        ck_assert_int_eq(rc, HD_OK);
        ck_assert_int_eq(s.stage, strstr(cases[_i].override, "zero_stage") ? 1 : 3);
        ck_assert_int_eq(s.order, 1);
    }
    hd__job_free(job);
}
END_TEST

/* A key has one reader. */
START_TEST(shared_key)
{
    static const struct hd_option named = {.name = "timeout", .type = HD_OPT_INT, .help = "seconds"},
                                  called = {.name = "limit",
                                            .type = HD_OPT_INT,
                                            .aliases = "most|timeout",
                                            .help = "s"},
                                  alike = {.name = "limit", .type = HD_OPT_INT, .aliases = "block_size", .help = "s"};
    struct hd__job *job = load(full_job, NULL, NULL, NULL);
    int64_t value;
    ck_assert_int_eq(hd__job_section_parse(job, job->comm, &named, 1, sizeof named, &value, &err), HD_E_UNSUPPORTED);
    ck_assert_str_eq(err.message,
                     "plugin comm-shm: its option timeout is a key of heddle's own in section comm: rename it");
    ck_assert_int_eq(hd__job_section_parse(job, job->comm, &called, 1, sizeof called, &value, &err), HD_E_UNSUPPORTED);
    ck_assert_str_eq(err.message, "plugin comm-shm: its option limit, also called timeout, is a key of heddle's own in "
                                  "section comm: rename it");
    ck_assert_int_eq(hd__job_section_parse(job, job->data, &alike, 1, sizeof alike, &value, &err), HD_E_UNSUPPORTED);
    hd__job_free(job);
}
END_TEST

/* comm, data and checkpoint are read by the core and by the plugin; the plugin's reading finds what neither knows.
 */
START_TEST(shared_section)
{
    struct hd__job *job = load(full_job, "comm.timout=3s", "checkpoint.stag=3", "data.bacth=2");
    struct plugin_settings s;
    ck_assert_int_eq(parse_section(job, job->comm, &s), HD_E_INVALID);
    ck_assert_str_eq(err.message, "command line: comm: unknown key timout; did you mean timeout?");
    ck_assert_int_eq(parse_section(job, job->data, &s), HD_E_INVALID);
    ck_assert_str_eq(err.message, "command line: data: unknown key bacth; did you mean batch?");
    ck_assert_int_eq(parse_section(job, job->checkpoint, &s), HD_E_INVALID);
    ck_assert_str_eq(err.message, "command line: checkpoint: unknown key stag; did you mean stage?");
    hd__job_free(job);
}
END_TEST

START_TEST(required_option)
{
    static const struct hd_option option = {
        .name = "path", .type = HD_OPT_STRING, .flags = HD_OPTION_REQUIRED, .help = "where"};
    struct hd__job *job = load(full_job, NULL, NULL, NULL);
    const char *path = NULL;
    ck_assert_int_eq(hd__job_section_parse(job, job->strategies[1], &option, 1, sizeof option, &path, &err),
                     HD_E_INVALID);
    ck_assert_str_eq(err.message, "job.yaml:10:5: strategies.zero: unknown key stage; the keys are path, use");
    ck_assert_int_eq(hd__job_section_parse(job, job->hooks[0], &option, 1, sizeof option, &path, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "job.yaml:5:89: comm.hooks.0 needs path (where)");
    hd__job_free(job);
}
END_TEST

/* ---- size and depth */

static char *repeat(const char *head, const char *unit, size_t n, const char *tail)
{
    size_t a = strlen(head), b = strlen(unit), c = strlen(tail);
    char *out = hd__alloc(a + n * b + c + 1);
    memcpy(out, head, a);
    for (size_t i = 0; i < n; i++)
        memcpy(out + a + i * b, unit, b);
    memcpy(out + a + n * b, tail, c);
    return out;
}

START_TEST(huge)
{
    char *text = repeat("", "[", 500000, "");
    ck_assert_str_eq(refusal(text, NULL, 1), "job.yaml:1:17: nested more than 16 deep");
    free(text);
    text = repeat("a: [", "1,", 200000, "1]\n");
    ck_assert_str_eq(refusal(text, NULL, 1), "job.yaml:1:200001: more than 100000 values: this is no job file");
    free(text);
    text = repeat("a: \"", "x", 2000000, "\"\n");
    ck_assert_str_eq(refusal(text, NULL, 1), "job.yaml: 2000006 bytes: a job file has at most 1 MiB");
    free(text);
    struct hd__text keys_text = {0};
    for (int i = 0; i < 1500; i++)
        hd__text_add(&keys_text, "k%d: 1\n", i);
    ck_assert_str_eq(refusal(keys_text.at, NULL, 1),
                     "job.yaml:1001:1: too many keys in one mapping: this is no job file");
    hd__text_free(&keys_text);
    text = repeat("job: {steps: ", "9", 100000, "}\n" REST);
    ck_assert_str_eq(refusal(text, NULL, 1),
                     "job.yaml:1:14: job.steps: "
                     "'999999999999999999999999999999999999999999999999999999999999' is not a whole number");
    free(text);
    text = repeat("job: {", "k", 900000, ": 1}\n" REST);
    ck_assert_str_eq(refusal(text, NULL, 1),
                     "job.yaml:1:900007: while parsing a flow mapping, did not find expected ',' or '}'; it begins at "
                     "line 1: is its end left out, or behind a #? A value with { } [ ] needs quotes");
    free(text);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("bad");
    tcase_add_loop_test(tc, bad_file, 0, HD__COUNT(files));
    tcase_add_loop_test(tc, bad_key, 0, HD__COUNT(keys));
    tcase_add_loop_test(tc, bad_special, 0, HD__COUNT(specials));
    tcase_add_loop_test(tc, bad_word, 0, HD__COUNT(words));
    tcase_add_loop_test(tc, bad_rule, 0, HD__COUNT(rules));
    tcase_add_loop_test(tc, bad_mesh, 0, HD__COUNT(meshes));
    tcase_add_test(tc, bad_batch);
    tcase_add_loop_test(tc, bad_section, 0, 14);
    tcase_add_test(tc, all_at_once);
    tcase_add_test(tc, at_most_twenty);
    tcase_add_test(tc, too_many_ranks);
    tcase_add_test(tc, shared_section);
    tcase_add_test(tc, shared_key);
    tcase_add_test(tc, required_option);
    tcase_add_test(tc, huge);
    return suite_run_case("bad jobs", tc);
}
