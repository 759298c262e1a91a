/* What the command refuses: with exit code 2, before anything starts, in words that name the place and what is
 * wrong. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cpu/parallel_for.h"
#include "tests/system/system.h"

#define TOKENIZER GOLDEN_DIR "/indexed/tokenizer.json"

struct row {
    const char *words, *message, *also; /* stderr has both; also may be NULL */
};

static void expect_rows(const struct row *rows)
{
    for (; rows->words; rows++) {
        struct command *c = command_run("%s", rows->words);
        ck_assert_msg(c->code == 2, "`%s`: exit code %d; it said:\n%s%s", rows->words, c->code, c->out, c->err);
        ck_assert_msg(strstr(c->err, rows->message) != NULL, "`%s`: \"%s\" is not in:\n%s", rows->words, rows->message,
                      c->err);
        ck_assert_msg(!rows->also || strstr(c->err, rows->also), "`%s`: \"%s\" is not in:\n%s", rows->words, rows->also,
                      c->err);
        ck_assert_msg(c->unhindered < promptly(10), "`%s` took %g s", rows->words, c->unhindered);
        ck_assert_msg(!*c->out, "`%s` wrote to stdout: %s", rows->words, c->out);
        ck_assert_int_eq(access("runs", F_OK), -1); /* nothing began */
    }
}

START_TEST(job_files)
{
    static const struct row rows[] = {
        {"train missing.yaml", "missing.yaml: cannot open the job file: No such file or directory", NULL},
        {"train .", ".: cannot open the job file: not a regular file but a folder", NULL},
        {"train empty.yaml", "empty.yaml:1:1: empty: a mapping of keys is wanted", NULL},
        {"train corpus.txt", "corpus.txt:", NULL},
        {"train broken.yaml", "broken.yaml:3:", NULL},
        {"train typo.yaml", "typo.yaml:5:", "unknown key sequence_len"},
        {"train typo.yaml", "did you mean seq_len?", NULL},
        {"train anchor.yaml", "anchor.yaml:2:", NULL},
        {"train headless.yaml", "headless.yaml:", "optimizer"},
        {"train found.yaml", "found.yaml is what `heddle plan` prints of a search: the job is what follows", NULL},
        {"plan machine.yaml", "machine.yaml is a machine file, not a job: name a job, and this by --machine", NULL},
        {"plan llama.yaml --machine llama.yaml", "llama.yaml is a job file: a machine file has name, device,", NULL},
        {NULL, NULL, NULL}};
    write_file("empty.yaml", "");
    write_file("found.yaml", "     step      MFU\n1    721 us   'mesh={pp: 1}'\n\n# its job file\njob:\n  name: t\n");
    write_file("machine.yaml", "name: here\nmemory: 1e9\nbandwidth: 1e10\nlevels:\n  - {name: shm}\n");
    write_file("broken.yaml", "job: {steps: 3}\ndata: {train: corpus.txt\nmodel: [\n");
    write_file("typo.yaml", "job: {steps: 3}\noptimizer: {use: adamw, lr: 1e-3}\n"
                            "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 1, vocab: 256}\n"
                            "data:\n  {train: corpus.txt, sequence_len: 8, batch: 1}\n");
    write_file("anchor.yaml", "job: {steps: 3}\ndata: &d {train: corpus.txt}\n");
    write_file("headless.yaml",
               "job: {steps: 3}\nmodel: {use: transformer}\ndata: {train: corpus.txt, seq_len: 8, batch: 1}\n");
    expect_rows(rows);
}
END_TEST

/* Words of other trainers, of YAML and of Python. */
START_TEST(words_of_others)
{
    static const struct row rows[] = {
        {"train llama.yaml data.batch=8 data.global_batch_size=16",
         "command line: 'data.batch=8' and 'data.global_batch_size=16' are one key, data.batch: leave one of them out",
         NULL},
        {"check llama.yaml strategies.zero.stage=3 strategies=[{\"use\":\"zero\"},{\"use\":\"ema\"}]",
         "command line: 'strategies.zero.stage=3' has no effect, because 'strategies=[{\"use\":\"zero\"}",
         "behind it replaces all of strategies: leave it out, or write it behind"},
        {"check llama.yaml optimizer.lr=1e-4 optimizer={\"use\":\"adamw\"}", "'optimizer.lr=1e-4' has no effect",
         "replaces all of optimizer: leave it out"},
        {"check llama.yaml data.val=short.txt data.val.a=more.txt", "'data.val=short.txt' has no effect, because",
         "'data.val.a=more.txt' behind it replaces all of data.val: leave one of them out"},
        {"check llama.yaml launch.ranks=4 launch.nodes=2 mesh.dp=4",
         "mesh: 8 ranks (launch.ranks 4 on each of 2 machines) are not pp 1 x dp 4", "launch.ranks=2; or mesh.dp=auto"},
        {"check llama.yaml launch.ranks=1 launch.nodes=1:2 mesh.tp=2",
         "command line: launch.nodes: 1 machine of 1 rank cannot hold tp 2: the least is 2", NULL},
        {"check llama.yaml mesh.tensor_parallel=2 mesh.tp=1", "command line: 'mesh.tensor_parallel=2' and 'mesh.tp=1'",
         "one key, mesh.tp"},
        {"train llama.yaml strategies.zero.stage=2.0", "'2.0' is none of 0, 1, 2, 3, NO_SHARD", "did you mean 2?"},
        {"train llama.yaml mesh.dp=-1", "command line: mesh.dp: -1: what the other axes leave is auto here: say auto",
         NULL},
        {"train llama.yaml checkpoint={\"resume\":yes}", "command line: checkpoint.resume: 'yes': say auto", NULL},
        {"train llama.yaml job.steps=1e18", "command line: job.steps: '1e18' is above 1e15: write all of its digits",
         NULL},
        {"train llama.yaml data.batch=1e18", "command line: data.batch: 1e18 is out of range: 1 to 1073741824", NULL},
        {"train llama.yaml strategies=[{\"use\":\"zero\",\"compress\":\"int8\"}]",
         "command line: strategies.zero.compress is a mapping, with the keys kind, block, rank, warmup",
         "write compress: {kind: ...}"},
        {"train llama.yaml optimizer.betas=0.9,0.95", "AdamW needs 2: write a list in brackets, [A, B]", NULL},
        {"check llama.yaml mesh.tp=2 data.seq_len=7 strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},"
         "{\"use\":\"zero\"}]",
         "command line: data.seq_len: 7 is not a multiple of 2, the ranks of tp that cut the sequence",
         "nearest that work: 6, 8"},
        {"check llama.yaml mesh=auto mesh.tp=2",
         "command line: 'mesh=auto' has no effect, because 'mesh.tp=2' behind it replaces all of mesh", NULL},
        {"train llama.yaml checkpoint=true", "checkpoint is a single value where a mapping is wanted: {} for", NULL},
        {"train llama.yaml checkpoint=false", "a mapping is wanted: leave the section out to do without", NULL},
        {"train llama.yaml checkpoint=folder", "a mapping is wanted: {dir: folder}", NULL},
        {"train auto.yaml strategies.zero.stage=2",
         "command line: strategies.zero is set, and the job has no list of strategies", "write strategies=[{use: zero"},
        {"import", "which configuration?", NULL},
        {"import llama.yaml", "llama.yaml: it is a job already", NULL},
        {"train llama.yaml eval.steps=4", "command line: eval: unknown key steps; eval.batches is how many batches one",
         "evaluation has, eval.every how often"},
        {"train llama.yaml checkpoint.steps=4", "checkpoint: unknown key steps; that is checkpoint.every", NULL},
        {"train llama.yaml metrics.steps=4", "metrics: unknown key steps; that is metrics.every", NULL},
        {"train llama.yaml schedule.steps=4", "schedule: unknown key steps; that is job.steps", NULL},
        {"train llama.yaml data.path=x", "command line: data: unknown key path; data.train names files, checkpoint.dir",
         NULL},
        {"train llama.yaml job.output_dir=x", "job: unknown key output_dir; that is checkpoint.dir", NULL},
        {"train llama.yaml wandb.project=x", "unknown section wandb; metrics.jsonl has all of it", NULL},
        {"train llama.yaml lora.r=8", "command line: unknown section lora; LoRA is not offered", NULL},
        {"train llama.yaml peft=1", "command line: unknown section peft; LoRA is not offered", NULL},
        {"train llama.yaml optimizer.freeze=1", "unknown key freeze; LoRA is not offered", "none are frozen"},
        {"train llama.yaml model.torch_dtype=bfloat16", "unknown key torch_dtype; that is precision.compute: bf16",
         NULL},
        {"train llama.yaml model.gradient_checkpointing=true", "gradient_checkpointing; that is recompute", NULL},
        {"train llama.yaml model.hidden_dropout=0.1", "unknown key hidden_dropout; heddle has no dropout", NULL},
        {"train llama.yaml max_steps=4", "command line: unknown section max_steps; that is job.steps", NULL},
        {"train llama.yaml lr=1e-4", "command line: unknown section lr; that is optimizer.lr", NULL},
        {"train dots.yaml",
         "dots.yaml:1:1: unknown section job.steps; dots are the command line's: write job: {steps: ...}", NULL},
        {"train llama.yaml gradient_accumulation_steps=4", "command line: unknown section gradient_accumulation_steps",
         "that follows from data.batch"},
        {"train llama.yaml mesh.data_parallel_shard_degree=2", "that is mesh.dp: {shard: N}", NULL},
        {"train llama.yaml optimizer.fused=true", "optimizer: unknown key fused; updates are fused always", NULL},
        {"train llama.yaml optimizer={\"use\":\"adamw\",lr:1e-3}", "a blank is wanted behind the colon", NULL},
        {"train llama.yaml data.train=alone.bin data.format=megatron", "alone.idx is not there: format: megatron needs",
         NULL},
        {"train indent.yaml", "indent.yaml:4:2: ", "is a line indented too little"},
        {"train llama.yaml data.train=empty.d", "command line: data.train: empty.d: has no file of text or JSON lines",
         NULL},
        {"train llama.yaml data.train=nothing*.txt", "data.train: nothing*.txt: no file matches this pattern", NULL},
        {"train llama.yaml data.train=rows.csv", "data.train: rows.csv: is a table", "or say data.format: bytes"},
        {"train llama.yaml data.train=lines.jsonl", "lines.jsonl: is JSON: its text is read with data.tokenizer", NULL},
        {"train llama.yaml checkpoint.resume=empty.d", "empty.d: `heddle ckpt ls` lists them", NULL},
        {"train llama.yaml checkpoint.resume=holds.d", "holds.d is a folder of checkpoints: name one of them",
         "as holds.d/step-00000004"},
        {"train llama.yaml checkpoint.resume=run.d", "checkpoint.resume: run.d is a folder of a run, with checkpoints",
         "as run.d/checkpoints/step-00000004"},
        {"train llama.yaml checkpoint.resume=holds.d/step-00000004/model.safetensors",
         "model.safetensors is in a checkpoint: name that, holds.d/step-00000004", NULL},
        {"train llama.yaml checkpoint.dir=gs://bucket/x", "command line: checkpoint.dir: there is no plugin ckpt-gs",
         "a store that speaks S3 is s3://BUCKET/PREFIX, with checkpoint.endpoint"},
        {"train llama.yaml checkpoint.dir=file:///tmp/x", "checkpoint.dir: 'file:///tmp/x' is a URL: write the path",
         NULL},
        {"train llama.yaml metrics.jsonl=file:///tmp/x",
         "metrics.jsonl: 'file:///tmp/x' is a URL: write the path alone", NULL},
        {"import ta.json", "ta.json: TrainingArguments of transformers are not read: docs/coming-from.md has", NULL},
        {NULL, NULL, NULL}};
    write_file("dots.yaml", "job.steps: 3\n");
    write_file("indent.yaml", "job: {steps: 3}\nmodel:\n  use: transformer\n layers: 2\n");
    ck_assert_int_eq(system("mkdir -p empty.d holds.d/step-00000004 run.d/checkpoints/step-00000004 && "
                            "touch holds.d/step-00000004/index.json holds.d/step-00000004/model.safetensors && "
                            "echo '{\"num_train_epochs\": 3}' > ta.json && cp corpus.txt alone.bin && echo '{\"text\": "
                            "\"a\"}' > lines.jsonl; cp corpus.txt rows.csv"),
                     0);
    ck_assert_int_eq(system("{ grep -v ^strategies llama.yaml; echo 'strategies: auto'; } > auto.yaml"), 0);
    expect_rows(rows);
    expect_code(command_run("check llama.yaml precision=bf16 precision.grad=bf16"), 0);
    struct command *c = command_run("check llama.yaml precision.grad=bf16 precision=bf16");
    expect_says(c, "'precision.grad=bf16' has no effect, because 'precision=bf16' behind it replaces all of precision");
    c = command_run("check llama.yaml precision=bf16 precision.compute=fp16");
    expect_says(c, "'precision=bf16' has no effect, because 'precision.compute=fp16' behind it");
}
END_TEST

static const struct row key_rows[] = {
    {"train llama.yaml optimizer.lrr=1", "command line: optimizer: unknown key lrr", "did you mean lr?"},
    {"train llama.yaml optimiser.lr=1", "optimiser", "did you mean optimizer?"},
    {"train llama.yaml data.batch=many", "command line: data.batch: 'many' is not a whole number", NULL},
    {"train llama.yaml optimizer.lr=-1", "command line: optimizer.lr: -1 is out of range", NULL},
    {"train llama.yaml optimizer.betas=[0.9]", "command line: optimizer.betas has 1 number, AdamW needs 2", NULL},
    {"train llama.yaml optimizer.betas=[0.9,1]", "command line: optimizer.betas: '1' is not a number from 0 up to",
     NULL},
    {"train llama.yaml optimizer.use=sgd optimizer.momentum=1",
     "command line: optimizer.momentum is 1: no gradient is ever forgotten, and steps only grow; use 0.9", NULL},
    {"train llama.yaml optimizer.eps=0", "command line: optimizer.eps: 0 is out of range: 1e-30 to 1", NULL},
    {"train llama.yaml optimizer.use=adamw8 optimizer.eps=0", "command line: optimizer.eps: 0 is out of range", NULL},
    {"train llama.yaml optimizer.use=muon optimizer.adamw_eps=0", "optimizer.adamw_eps: 0 is out of range", NULL},
    {"train llama.yaml optimizer.use=adafactor optimizer.eps1=0", "optimizer.eps1: 0 is out of range", NULL},
    {"check llama.yaml model.family=mixtral model.experts=4 model.router_aux_loss_coef=-0.5",
     "command line: model.router_aux_loss_coef is -0.5: a loss has a weight of 0 or more", NULL},
    {"train betas.yaml", "betas.yaml:2:39: optimizer.betas: '1.5' is not a number from 0", NULL},
    {"train tuple.yaml", "tuple.yaml:2:", "unknown key 0.95); a list is written in brackets: [A, B]"},
    {"check betas.yaml", "betas.yaml:2:39: optimizer.betas: '1.5' is not a number from 0", NULL},
    {"train llama.yaml optimizer.lr=nan", "command line: optimizer.lr: 'nan' is not a number", NULL},
    {"train llama.yaml job.steps=0", "command line: job.steps: 0 is too small", NULL},
    {"train llama.yaml job.steps=", "command line: 'job.steps=' has no value", NULL},
    {"train llama.yaml =3", "command line: '=3' is not key=value", NULL},
    {"train llama.yaml job.name=../up", "command line: job.name: '../up'", NULL},
    {"train llama.yaml model.family=lama", "command line: model.family: 'lama' is none of", "llama"},
    {"train llama.yaml strategies.zero.stage=7", "command line: strategies.zero.stage: '7' is none of 0, 1, 2, 3",
     NULL},
    {"train llama.yaml model.layers=1000000", "command line: model.layers: 1000000 is out of range: 1 to 4096", NULL},
    {"check llama.yaml model.norm_eps=0", "command line: model.norm_eps: 0 is out of range", NULL},
    {"check llama.yaml model.rope_theta=0", "command line: model.rope_theta: 0 is out of range: 1 to", NULL},
    {"check llama.yaml model.layers=0", "command line: model.layers: 0 is out of range: 1 to 4096", NULL},
    {"check llama.yaml model.hidden=1e9", "model.head_dim is ", "use more heads"},
    {"check llama.yaml model.hidden=1e9 model.heads=1000000 model.kv_heads=1000000 data.seq_len=1000000 "
     "data.batch=1000000000 data.micro_batch=1000000000",
     "llama.yaml:", "elements, more than 2^54: make one of them smaller"},
    {"check llama.yaml data.micro_batch=1e9 data.batch=1e9 data.seq_len=1000", "elements on one rank, more than 2^43",
     NULL},
    {"check llama.yaml data.batch=1e9", "command line: data.batch: a step of 500000000 micro-batches", NULL},
    {"check llama.yaml mesh.pp=2 data.batch=1000000 data.micro_batch=1",
     "command line: data.batch: a pipeline writes out every micro-batch: 1000000 of them", NULL},
    {"check llama.yaml job.deterministic=exact data.batch=1048576 data.micro_batch=1",
     "command line: data.batch: job.deterministic: exact writes out every micro-batch", NULL},
    {"check llama.yaml mesh.pp=65", "command line: mesh.pp: a pipeline has at most 64 stages, not 65", NULL},
    {"check llama.yaml strategies=[{\"use\":\"zero\"},{\"use\":\"ema\",\"decay\":1}]",
     "command line: strategies.ema.decay is 1: the average would stay at the initial weights", NULL},
    {"check llama.yaml comm.tune=no.json", "command line: comm.tune: no.json: cannot open the tuning file", NULL},
    {"train llama.yaml model.kv_heads=3", "command line: model.heads (4) is not a multiple of model.kv_heads (3)",
     NULL},
    {"train llama.yaml data.formt=bytes", "command line: data: unknown key formt", "did you mean format?"},
    {"train llama.yaml data.format=llm", "command line: data.format: 'llm' is none of auto, bytes, llmc,",
     "did you mean llmc?"},
    {"check llama.yaml data.format=npy data.token_dtype=uint32",
     "command line: data.token_dtype: only nanogpt files need it; the others say it", NULL},
    {"train llama.yaml data.use=parquet", "command line: there is no plugin data-parquet", NULL},
    {"train llama.yaml eval.every=2", "command line: eval.every: ", "data.val_fraction"},
    {"train llama.yaml precision.loss_scale=0.5", "command line: precision.loss_scale: auto, none, dynamic or a number",
     NULL},
    {"check llama.yaml precision=fp64 optimizer.use=lion",
     "command line: precision.compute is fp64, in which optimizer lion, whose step function works on fp32, cannot "
     "update: use optimizer.use=adamw or sgd, or precision.compute=fp32",
     NULL},
    {"train llama.yaml --dry-run precision=fp64 optimizer.rounding=stochastic",
     "command line: optimizer.rounding: stochastic rounding is for precision.master=bf16, and with "
     "precision.compute=fp64 the weights are in fp64: leave one of them out",
     NULL},
    {"train llama.yaml schedule={\"kind\":\"cosine\",\"min_lr\":0.5}",
     "command line: schedule.min_lr: 0.5 is above optimizer.lr, ", NULL},
    {"train llama.yaml recompute=ful", "command line: recompute: ", "did you mean full?"},
    {"train llama.yaml strategies.zero.bucket=25", "command line: strategies.zero.bucket is 25 bytes", "write 25MB"},
    {"train llama.yaml comm.spinn=1ms", "command line: comm: unknown key spinn",
     "did you mean spin?"}, /* of one rank, too */
    {"train llama.yaml comm.spin=soon", "command line: comm.spin: 'soon' is not a duration", NULL},
    {"train llama.yaml model.from=https://huggingface.co/gpt2",
     "command line: model.from: 'https://huggingface.co/gpt2' is a URL", NULL},
    {"train llama.yaml checkpoint.dir=s3:/bucket/x",
     "command line: checkpoint.dir: 's3:/bucket/x' is no s3://BUCKET/PREFIX: did you mean s3://bucket/x?", NULL},
    {"train llama.yaml metrics.jsonl=s3:/bucket/m", "metrics.jsonl: 's3:/bucket/m' is a URL", NULL},
    {"train llama.yaml metrics.jsonl=none", "command line: metrics.jsonl: 'none' is no name of a file", NULL},
    {"train llama.yaml metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"off\"}]",
     "command line: metrics.sinks.0.dir: 'off' is no name of a file: leave the key out, or write ./off", NULL},
    {"train llama.yaml metrics.jsonl=.", "command line: metrics.jsonl: .: Is a directory", NULL},
    {"train llama.yaml metrics.jsonl=one metrics.blocks=./one",
     "command line: metrics.blocks: ./one is where metrics.jsonl writes: name another", NULL},
    {"train llama.yaml metrics.blocks=one metrics.trace=one",
     "command line: metrics.trace: one is where metrics.blocks writes", NULL},
    {"train llama.yaml checkpoint.dir=one metrics.jsonl=one --dry-run",
     "command line: checkpoint.dir: one is where metrics.jsonl writes", NULL},
    {"train llama.yaml job.name=mine checkpoint.dir=./runs/mine",
     "command line: checkpoint.dir: ./runs/mine is the run's folder", "as runs/mine/checkpoints"},
    {"train llama.yaml metrics.blocks=.", "command line: metrics.blocks: .: Is a directory", NULL},
    {"train llama.yaml metrics.jsonl=m.jsonl metrics.tensorboard=corpus.txt",
     "command line: metrics.tensorboard: corpus.txt/", NULL},
    {"train llama.yaml metrics.jsonl=m.jsonl metrics.tensorboard=./m.jsonl --dry-run",
     "command line: metrics.tensorboard: ./m.jsonl is where metrics.jsonl writes: name another", NULL},
    {"train llama.yaml metrics.jsonl=x.prom metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"x.prom\"}]",
     "command line: metrics.sinks.0: x.prom is where metrics.jsonl writes: name another", NULL},
    {"train llama.yaml metrics.tensorboard=tb metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"tb\"}]",
     "command line: metrics.sinks.0: tensorboard is there already, as metrics.tensorboard at command line, and "
     "writes to the same place",
     NULL},
    {"train llama.yaml mesh.dp=2 data.micro_batches=[3,1]",
     "command line: data.micro_batches: 1 is too few, since the last has code of its own: at least 2 are needed", NULL},
    {"train llama.yaml mesh.dp=2 data.micro_batches=[2,1] data.batch=6",
     "command line: data.micro_batches: 1 is too few, since the last has code of its own: at least 2 are needed", NULL},
    {"train llama.yaml mesh.dp=2 data.micro_batches=[3,2] data.batch=10 strategies.zero.stage=1",
     "command line: data.micro_batches: 2 is too few, since the first and the last have code of their own: at least 3 "
     "are needed on each rank",
     NULL},
    {"train llama.yaml mesh.pp=2 strategies=[{\"use\":\"3d\",\"split\":[1,2]},{\"use\":\"zero\"}]",
     "command line: strategies.3d.split adds up to 3 layers, the model has 2: say a list that adds up to that, or "
     "layers, which shares them evenly",
     NULL},
    {"train llama.yaml mesh.pp=2 strategies=[{\"use\":\"3d\",\"split\":\"no.csv\"},{\"use\":\"zero\"}]",
     "command line: strategies.3d.split: cannot open no.csv: No such file or directory: name a file that", NULL},
    {"train llama.yaml mesh.pp=2 strategies=[{\"use\":\"3d\",\"schedule\":\"no.csv\"},{\"use\":\"zero\"}]",
     "command line: strategies.3d.schedule: cannot open no.csv: No such file or directory: name a file of rows", NULL},
    {"train llama.yaml mesh.cp=2 model.kv_heads=1 model.heads=1 "
     "strategies=[{\"use\":\"3d\",\"context\":\"ulysses\"},{\"use\":\"zero\"}]",
     "command line: strategies.3d.context: ulysses needs heads that divide", "use context: ring"},
    {"train llama.yaml metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"a\"},{\"use\":\"tensorboard\",\"dir\":"
     "\"b\"},{\"use\":\"tensorboard\",\"dir\":\"a\"}]",
     "command line: metrics.sinks.2: tensorboard is there already, as metrics.sinks.0", NULL},
    {"train llama.yaml metrics.tensorboard=tb metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"./x/..//tb/\"}]",
     "command line: metrics.sinks.0: tensorboard is there already, as metrics.tensorboard", NULL},
    {NULL, NULL, NULL}};

START_TEST(keys)
{
    write_file("betas.yaml", "job: {steps: 3}\noptimizer: {use: adamw, lr: 1, betas: [1.5, 0.9]}\n"
                             "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 1, vocab: 256}\n"
                             "data: {train: corpus.txt, seq_len: 8, batch: 1}\n");
    ck_assert_int_eq(system("sed 's/1.5, 0.9./(0.9, 0.95)/; s/\\[(/(/' betas.yaml > tuple.yaml"), 0);
    expect_rows(key_rows);
}
END_TEST

START_TEST(meshes)
{
#define WITH_3D "strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]"
    static const struct row rows[] = {
        {"train llama.yaml mesh.tp=3", "command line: mesh.tp = 3 must divide the kv heads (2)", NULL},
        {"train llama.yaml mesh.dp=2 strategies=[{\"use\":\"fdsp\"}]",
         "command line: there is no plugin strategy-fdsp: did you mean strategy-fsdp?", NULL},
        {"train llama.yaml mesh.dp=2 strategies=[{\"use\":\"fsdp\"},{\"use\":\"zero\"}]",
         "fsdp is strategy zero with {stage: FULL_SHARD}", "remove one"},
        {"check llama.yaml mesh.dp=2 strategies=[{\"use\":\"fsdp\"}] strategies.zero.bucket=1MB",
         "no strategy zero in the job, which has fsdp: add {use: zero} to `strategies`", NULL},
        {"check ring.yaml",
         "ring.yaml:5:36: data.seq_len: 36 is not a multiple of 2 x mesh.cp = 8, as ring attention "
         "needs; nearest that work: 32, 40",
         NULL},
        {"check llama.yaml model.max_seq_len=8", "llama.yaml:", "data.seq_len is 32, but this model has 8 positions"},
        {"check llama.yaml mesh.dp=2 strategies.zero.stage=ful_shard", "did you mean FULL_SHARD?", NULL},
        {"train llama.yaml strategies=[{\"use\":\"3d\"}]", "none of these updates the parameters", "{use: zero}"},
        {"train llama.yaml mesh.tp=3 " WITH_3D, "mesh.tp = 3 must divide the kv heads (2)", NULL},
        {"train llama.yaml mesh.tp=4 model.vocab=5 " WITH_3D, "model.vocab = 5 must be a multiple of mesh.tp = 4",
         "vocab_parallel: false"},
        {"train llama.yaml mesh.tp=2 model.ffn=127 " WITH_3D, "model.ffn = 127 must be a multiple of mesh.tp = 2",
         NULL},
        {"train llama.yaml mesh.dp=3", "llama.yaml:5:53: data.batch: 8 is no multiple of micro_batch 2 x dp 3",
         "nearest that work"},
        {"train llama.yaml data.batch=7", "command line: data.batch: 7 is no multiple", "data.batch=8"},
        {"train llama.yaml launch.ranks=1 mesh.dp=4", "command line: mesh: 1 rank is not pp 1 x dp 4", "ranks 4"},
        {"train llama.yaml launch.ranks=2 mesh.dp=4", "command line: mesh: 2 ranks are not pp 1 x dp 4", "mesh.dp=2"},
        {"train llama.yaml mesh.cp=3", "seq_len", "3"},
        {"train llama.yaml mesh.ep=2", "command line: mesh.ep = 2, but the model has no experts", NULL},
        {"train llama.yaml mesh.dp=0", "command line: mesh.dp", NULL},
        {"train llama.yaml mesh.dp=1000000 data.batch=2000000", "does not fit: ", "1000000 ranks here"},
        {"check llama.yaml mesh.dp=3", "data.batch: 8 is no multiple", NULL},
        {"explain llama.yaml mesh.tp=3", "mesh.tp = 3", NULL},
        {"explain llama.yaml mesh.dp=2 comm.levels=numa", "comm.inside names no transport", NULL},
#ifdef MPI
        {"check llama.yaml mesh.dp=4 data.batch=8 comm.inside=mpi",
         "command line: comm.inside: mpi adds in an order of its own", "comm.sums: any"},
        {"train llama.yaml mesh.dp=2 plugins.path=" PIPES " comm.use=pipes comm.inside=mpi",
         "comm.inside: mpi adds in an order of its own", NULL},
#endif
        {NULL, NULL, NULL}};
    write_file("ring.yaml", "job: {steps: 3}\noptimizer: {use: adamw}\nmesh: {cp: 4}\nstrategies: [{use: 3d, context: "
                            "ring}, {use: zero}]\ndata: {train: corpus.txt, seq_len: 36, batch: 4}\n"
                            "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 1, vocab: 256}\n");
    expect_rows(rows);
}
END_TEST

/* Every mistake of a file, in its order, whichever plugin's table finds it. */
START_TEST(several)
{
    static const char *const lines[] = {"many.yaml:1:14: job.steps: 'x' is not a whole number\n",
                                        "many.yaml:2:25: optimizer: unknown key lrr; did you mean lr?\n",
                                        "many.yaml:3:27: model: unknown key layrs; did you mean layers?\n",
                                        "many.yaml:4:13: there is no plugin comm-shn: did you mean comm-shm?",
                                        "many.yaml:5:21: data: unknown key formt; did you mean format?\n",
                                        "many.yaml:5:50: data.batch: 'y' is not a whole number\n",
                                        "many.yaml:6:26: strategies.zero: unknown key stag; did you mean stage?\n",
                                        "command line: device: unknown key thread; did you mean threads?\n"};
    struct command *c;
    const char *at;
    write_file("many.yaml", "job: {steps: x}\noptimizer: {use: adamw, lrr: 1}\n"
                            "model: {use: transformer, layrs: 1}\ncomm: {use: shn}\n"
                            "data: {train: none, formt: x, seq_len: 8, batch: y}\n"
                            "strategies: [{use: zero, stag: 3}]\n");
    c = command_run("check llama.yaml data.batch=7 model.layrs=3"); /* what values mean together comes with the rest */
    ck_assert_ptr_nonnull(strstr(c->err, "unknown key layrs"));
    ck_assert_ptr_nonnull(strstr(c->err, "data.batch: 7 is no multiple"));
    c = command_run("train many.yaml device.thread=1");
    ck_assert_int_eq(c->code, 2);
    at = c->err;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *found = strstr(at, lines[i]);
        ck_assert_msg(found != NULL, "\"%s\" is not there, or not in its place:\n%s", lines[i], c->err);
        at = found + 1;
    }
}
END_TEST

START_TEST(data_files)
{
    static const struct row rows[] = {
        {"train llama.yaml data.train=missing.txt", "command line: data.train: missing.txt: No such file or directory",
         NULL},
        {"train llama.yaml data.train=pre/fix",
         "command line: data.train: pre/fix: there is no such file; say pre/fix.bin, which is there", NULL},
        {"train gone.yaml", "gone.yaml:4:15: data.train: missing.txt: No such file or directory", NULL},
        {"train llama.yaml data.train=.",
         "command line: data.train: .: a folder or a pattern that is not of token files alone (.bin, .npy) is read as "
         "text",
         "data.tokenizer"},
        {"train llama.yaml data.train=nothing.txt", "nothing.txt: the file is empty", NULL},
        {"train llama.yaml data.train=short.txt",
         "short.txt: 32 tokens are too few for one sequence of seq_len 32, which takes 33", NULL},
        {"train llama.yaml data.train=[]", "command line: data.train is an empty list", NULL},
        {"train llama.yaml data.val=missing.txt eval.every=2", "command line: data.val: missing.txt: No such file",
         NULL},
        {"train llama.yaml data.val=short.txt eval.every=2", "command line: data.val: short.txt: 32 tokens are too few",
         NULL},
        {"train llama.yaml data.val_fraction=0.00001 eval.every=2",
         "command line: data.val_fraction: corpus.txt: ", "too few"},
        {"train llama.yaml data.train=odd.bin", "odd.bin: ", NULL},
        {"train llama.yaml data.train=corpus.txt data.format=llmc", "corpus.txt: ", "llm.c"},
        {"train llama.yaml data.train=corpus.txt data.format=npy", "corpus.txt: not an npy file", NULL},
        {"train llama.yaml data.train=~/corpus.txt", "data.train: ~/corpus.txt: No such file or directory",
         "~, * and $ are not expanded"},
        {"train llama.yaml data.train=corpus.txt,more.txt",
         "data.train: corpus.txt,more.txt: No such file or directory",
         "; several files are a list: [corpus.txt,more.txt]"},
        {"train llama.yaml data.train=corpu*.txt",
         "corpu*.txt: a folder or a pattern that is not of token files alone (.bin, .npy) is read as text",
         "data.tokenizer"},
        {"train llama.yaml data.train=pipe", "command line: data.train: pipe: not a regular file but a FIFO", NULL},
        {"train llama.yaml model.vocab=4096", "llama.yaml:5:21: data.train: corpus.txt: text, or other bytes",
         "data.format: bytes"},
        {"train llama.yaml data.train=packed.txt data.format=bytes", "command line: data.train: packed.txt: is gzip",
         "unpack it first"},
        {"train llama.yaml data.train=wide.bin", "wide.bin: every second token is 0", "data.token_dtype: uint32"},
        {"train llama.yaml data.token_dtype=uint32",
         "corpus.txt: would be read as bytes, which have no data.token_dtype", "data.format: nanogpt"},
        {"train llama.yaml data.train=wide.bin model.vocab=65537", "a vocabulary of 65537 does not fit into uint16",
         "data.token_dtype: uint32"},
        {"train llama.yaml model.from=org/nowhere", "command line: model.from: org/nowhere: there is no such folder",
         "hf download org/nowhere"},
        {"check folder.yaml model.layers=3", "command line: model.layers is 3, but hf/config.json says 2", NULL},
        {"check folder.yaml data.seq_len=65",
         "command line: data.seq_len is 65, but this model has 64 positions (max_position_embeddings in the "
         "config.json of model.from): use at most 64",
         NULL},
        {"check llama.yaml model.max_seq_len=16", "data.seq_len is 32, but this model has 16 positions",
         "model.max_seq_len"},
        {"check folder.yaml model.from=odd", "command line: model.from: odd/config.json: \"hidden_act\" is", NULL},
        {"eval llama.yaml data.train=missing.txt data.val_fraction=0.1",
         "command line: data.train: missing.txt: No such file or directory", NULL},
        {"eval llama.yaml data.val=missing.txt", "command line: data.val: missing.txt: No such file", NULL},
        {"eval llama.yaml", "set data.val or data.val_fraction", NULL},
        {NULL, NULL, NULL}};
    ck_assert_int_eq(system("mkdir -p pre && cp corpus.txt pre/fix.bin"), 0);
    write_file("gone.yaml", "job: {steps: 3}\noptimizer: {use: adamw, lr: 1e-3}\n"
                            "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 1, vocab: 256}\n"
                            "data: {train: missing.txt, seq_len: 8, batch: 1}\n");
    write_file("folder.yaml", "job: {steps: 3}\noptimizer: {use: adamw, lr: 1e-3}\n"
                              "model: {use: transformer, from: hf}\n"
                              "data: {train: corpus.txt, seq_len: 8, batch: 1}\n");
    ck_assert_int_eq(system("mkdir hf odd && cp " GOLDEN_DIR "/llama/config.json hf && "
                            "sed s/silu/gelu/ hf/config.json > odd/config.json && mkfifo pipe && "
                            "gzip -c corpus.txt > packed.txt && "
                            "head -c 4000 corpus.txt | sed 's/./&\\x00\\x00\\x00/g' | tr -d '\\n' > wide.bin"),
                     0);
    write_file("nothing.txt", "");
    write_file("short.txt", "thirty-two characters of a text.");
    write_file("odd.bin", "tokens of two bytes in a file of an odd length: no, this is refused");
    expect_rows(rows);
}
END_TEST

/* Adds tensors of 2 zeros to a safetensors file. */
static void add_tensors(const char *path, const char *const *names)
{
    uint64_t length, bytes = 0;
    json_t *header, *entry;
    const char *name;
    struct stat st;
    FILE *file = fopen(path, "rb");
    ck_assert_int_eq(fread(&length, 8, 1, file), 1);
    ck_assert_int_eq(fstat(fileno(file), &st), 0);
    char *text = hd__alloc(length), *data = hd__alloc((size_t)st.st_size);
    ck_assert_uint_eq(fread(text, 1, length, file), length);
    bytes = fread(data, 1, (size_t)st.st_size, file);
    fclose(file);
    header = json_loadb(text, length, 0, NULL);
    for (; (name = *names); names++, bytes += 8) {
        entry = json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", 2, "data_offsets", (json_int_t)bytes,
                          (json_int_t)bytes + 8);
        json_object_set_new(header, name, entry);
    }
    free(text);
    text = json_dumps(header, JSON_COMPACT);
    length = strlen(text);
    file = fopen(path, "wb");
    fwrite(&length, 8, 1, file);
    fwrite(text, 1, length, file);
    fwrite(data, 1, (size_t)st.st_size, file); /* zeros at its end */
    fclose(file);
    ck_assert_int_eq(truncate(path, (off_t)(8 + length + bytes)), 0);
    json_decref(header);
    free(text);
    free(data);
}

/* The tokens and the job that the golden models train. */
static void write_folder_job(const char *from)
{
    char tokens[4000], job[400];
    for (size_t i = 0; i < sizeof tokens; i++)
        tokens[i] = (char)(i % 2 ? 0 : i / 2 % 32);
    FILE *file = fopen("tokens.bin", "wb");
    ck_assert_uint_eq(fwrite(tokens, 1, sizeof tokens, file), sizeof tokens);
    fclose(file);
    snprintf(job, sizeof job,
             "job: {steps: 3}\noptimizer: {use: adamw, lr: 1e-3}\nmodel: {use: transformer, from: %s}\n"
             "data: {train: tokens.bin, seq_len: 8, batch: 1}\n",
             from);
    write_file("folder.yaml", job);
}

/* A tensor that has the right number of elements in another shape is of another layout. */
START_TEST(weights_in_another_layout)
{
    static const struct row rows[] = {
        {"train folder.yaml model.from=linear --dry-run",
         "command line: model.from: linear/model.safetensors: tensor transformer.h.0.attn.c_attn.weight is [36, 12], "
         "but parameter transformer.h.0.attn.c_attn.q.weight wants [12, 36]: transposed?",
         "(Conv1D; nanoGPT: [out, in])"},
        {"train folder.yaml model.from=linear", "is [36, 12], but", NULL},
        {"sample folder.yaml model.from=linear --tokens 2", "is [36, 12], but", NULL},
        {"train folder.yaml model.from=whole --dry-run",
         "command line: model.from: whole/model.safetensors: tensor transformer.h.0.attn.c_attn.bias: U32 is not "
         "supported",
         "convert it to F32 or BF16"},
        {"train folder.yaml model.from=flat", "tensor transformer.wte.weight is [384], but", "wants [32, 12]: another"},
        {"train folder.yaml model.from=down model.dropout=0 mesh.tp=2 data.batch=2",
         "tensor model.layers.0.mlp.down_proj.weight is [24, 16], but", "wants [16, 24]: transposed?"},
        {NULL, NULL, NULL}};
    ck_assert_int_eq(
        system("cp -r " GOLDEN_DIR "/gpt2 gpt && cp -r " GOLDEN_DIR "/llama down && "
               "for d in linear flat ones whole; do cp -r gpt $d; done && "
               "sed -i 's/\"F32\"/\"U32\"/' whole/model.safetensors && "
               "sed -i 's/\\[12,36\\]/[36,12]/g' linear/model.safetensors && "
               "sed -i 's/\\[32,12\\]/[384  ]/' flat/model.safetensors && "
               "sed -i 's/{\"format\":\"pt\"}/{           }/; s/\\[12\\]/[1,12]/' ones/model.safetensors && "
               "sed -i 's/\\[16,24\\]/[24,16]/' down/model.safetensors"),
        0);
    write_folder_job("gpt");
    expect_rows(rows);
    expect_code(command_run("train folder.yaml --dry-run"), 0);
    expect_code(command_run("train folder.yaml --dry-run model.from=ones"), 0);
}
END_TEST

/* The golden llama's first two tensors are the head and the embedding, 32 x 16 each. */
static void copy_embedding_to_head(const char *path)
{
    char values[32 * 16 * sizeof(float)];
    uint64_t length;
    FILE *file = fopen(path, "r+b");
    ck_assert_uint_eq(fread(&length, 8, 1, file), 1);
    ck_assert_int_eq(fseek(file, (long)(8 + length + sizeof values), SEEK_SET), 0);
    ck_assert_uint_eq(fread(values, sizeof values, 1, file), 1);
    ck_assert_int_eq(fseek(file, (long)(8 + length), SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(values, sizeof values, 1, file), 1);
    fclose(file);
}

/* Weights that the model does not use are another model's; but buffers and a tied head are in many files. */
START_TEST(weights_without_a_place)
{
    static const char *const extra[] = {"model.layers.0.self_attn.q_proj.bias", NULL},
                             *const usual[] = {"model.layers.0.self_attn.rotary_emb.inv_freq",
                                               "model.layers.1.attn.bias", NULL};
    static const struct row rows[] = {
        {"train folder.yaml model.from=extra --dry-run",
         "command line: model.from: extra: this model has no place for 1 tensor of the weights "
         "(model.layers.0.self_attn.q_proj.bias): another model, or a config.json that is not theirs?",
         NULL},
        {"train folder.yaml model.from=extra", "(model.layers.0.self_attn.q_proj.bias)", NULL},
        {"eval folder.yaml model.from=extra data.val_fraction=0.1", "(model.layers.0.self_attn.q_proj.bias)", NULL},
        {"sample folder.yaml model.from=extra --tokens 2", "(model.layers.0.self_attn.q_proj.bias)", NULL},
        {"train folder.yaml model.from=fewer",
         "no place for 9 tensors of the weights (model.layers.1.input_layernorm.weight, "
         "model.layers.1.mlp.down_proj.weight, model.layers.1.mlp.gate_proj.weight, ...)",
         NULL},
        {"train folder.yaml model.from=tied --dry-run",
         "tied/model.safetensors: tensor lm_head.weight is not the embedding, which is this model's head",
         "\"tie_word_embeddings\": false"},
        {"sample folder.yaml model.from=tied --tokens 2", "lm_head.weight is not the embedding", NULL},
        {"train folder.yaml model.from=base --dry-run", "model.from: the weights have no tensor lm_head.weight, which",
         "was the base model saved, without its head?"},
        {"train folder.yaml model.from=wrapped --dry-run",
         "the weights have no tensor model.embed_tokens.weight, which parameter model.embed_tokens.weight needs; they "
         "have m.model.embed_tokens.weight: rename it, and all that differ like it",
         NULL},
        {NULL, NULL, NULL}};
    ck_assert_int_eq(system("for d in extra usual fewer tied base wrapped; do cp -r " GOLDEN_DIR "/llama $d; done && "
                            "sed -i 's/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/' fewer/config.json && "
                            "sed -i 's/\"model\\.\\([a-z0-9_.]*\\)\"/\"\\1\"      /g' base/model.safetensors && "
                            "cp -r base bare && sed -i 's/lm_head.weight/lm_head.wasted/' base/model.safetensors && "
                            "sed -i 's/{\"format\":\"pt\"}/{           }/; s/\"model.embed/\"m.model.embed/' "
                            "wrapped/model.safetensors"),
                     0);
    add_tensors("extra/model.safetensors", extra);
    add_tensors("usual/model.safetensors", usual);
    ck_assert_int_eq(
        system("sed -i 's/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/' tied/config.json"), 0);
    write_folder_job("usual");
    expect_rows(rows);
    expect_code(command_run("train folder.yaml"), 0);
    expect_code(command_run("train folder.yaml mesh.pp=2 data.batch=2"), 0);
    expect_code(command_run("train folder.yaml model.from=bare"), 0);
    copy_embedding_to_head("tied/model.safetensors");
    expect_code(command_run("train folder.yaml model.from=tied"), 0);
    ck_assert_int_eq(system("rm -rf runs"), 0); /* other tests want none */
}
END_TEST

/* A key of another section, or of another plugin of its kind. */
START_TEST(sections_mixed_up)
{
    static const char *const rows[][2] = {
        {"job.batch=8", "job: unknown key batch; that is data.batch"},
        {"data.seed=1", "data: unknown key seed; that is job.seed"},
        {"optimizer={\"use\":\"sgd\",\"lr\":1,\"betas\":[0.9,0.95]}",
         "optimizer: unknown key betas; that is an option of optim-adamw, optim-adamw8"},
        {"strategies=[{\"use\":\"zero\",\"schedule\":\"gpipe\"}]",
         "strategies.zero: unknown key schedule; that is an option of strategy-3d"},
        {"optimizer.warmup=3", "optimizer: unknown key warmup; that is schedule.warmup"},
        {"model.seq_len=64", "model: unknown key seq_len; that is data.seq_len"},
        {"model.recompute=full", "model: unknown key recompute; that is section recompute\n"},
        {"schedule.clip=1", "schedule: unknown key clip; that is optimizer.clip\n"},
        {"model.betas=1", "model: unknown key betas; that is optimizer.betas\n"},
        {"hidden=8", "unknown section hidden; that is model.hidden\n"},
        {"data.every=5", "data: unknown key every; the keys are "}}; /* of several sections */
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("check llama.yaml %s", rows[i][0]);
        expect_code(c, 2);
        expect_says(c, rows[i][1]);
    }
}
END_TEST

START_TEST(paths_of_a_shell)
{
    static const struct row rows[] = {
        {"train llama.yaml --dry-run metrics.jsonl=~/m.jsonl",
         "command line: metrics.jsonl: '~/m.jsonl': ~, $ and ` are not", NULL},
        {"train llama.yaml checkpoint.dir=~/c", "command line: checkpoint.dir: '~/c': ~, $ and ` are not", NULL},
        {"train llama.yaml checkpoint.dir=a/$HOME/c", "checkpoint.dir: 'a/$HOME/c': ", "write the whole path"},
        {"train llama.yaml checkpoint.dir=c-${N}", "checkpoint.dir: 'c-${N}': ", "write the whole path"},
        {"train llama.yaml data.train=$HOME/t.bin", "data.train: $HOME/t.bin: No such file", "$ are not expanded"},
        {NULL, NULL, NULL}};
    expect_rows(rows);
}
END_TEST

/* --dry-run looks at what a run would read first and write; it writes nothing. */
START_TEST(dry_runs)
{
#define DRY "train folder.yaml --dry-run "
    static const struct row rows[] = {
        {"eval folder.yaml --requests r.jsonl --to a.jsonl --split test", "heddle eval: --split names data of the job",
         NULL},
        {"train folder.yaml --job.steps=5",
         "there is no option --job.steps=5: keys of the job have no dashes: job.steps=5", NULL},
        {"train folder.yaml --seed 5", "there is no option --seed: keys of the job have no dashes: job.seed=VALUE",
         NULL},
        {"check folder.yaml --micro-batch-size 4", "keys of the job have no dashes: data.micro_batch=VALUE", NULL},
        {"train folder.yaml --learning-rate=1e-4", "keys of the job have no dashes: optimizer.lr=VALUE", NULL},
        {"train folder.yaml --bf16 True", "keys of the job have no dashes: precision.compute=bf16", NULL},
        {"train folder.yaml --resume_from_checkpoint a", "keys of the job have no dashes: checkpoint.resume=PATH",
         NULL},
        {"train llama.yaml optimizer.use=paged_adamw_8bit", "did you mean optim-adamw_8bit?", NULL},
        {"train folder.yaml --batch_size=12", "keys of the job have no dashes: write SECTION.KEY=VALUE", NULL},
        {"train folder.yaml data.batch_size=8", "data: unknown key batch_size; that is data.batch of a step", NULL},
        {"train llama.yaml launch.rendezvous=a:29400",
         "command line: launch.rendezvous is given, and the job runs on one machine: set launch.nodes (--nodes N or "
         "MIN:MAX), or leave it out",
         NULL},
        {"train folder.yaml launch.nodes=2 --node-rank 0 --rendezvous tcp://127.0.0.1:29600",
         "is a URL, and HOST:PORT is wanted", NULL},
        {"train llama.yaml launch.ranks=3 mesh.tp=2", "nearest that work: mesh.tp=1, ranks 2, ranks 4", NULL},
        {"train llama.yaml launch.ranks=4 mesh.dp=2", "nearest that work: mesh.tp=2, mesh.cp=2, mesh.dp=4, mesh.pp=2",
         NULL},
        {"eval folder.yaml data.val_fraction=0.1 --split train",
         "the job has no such set: it has val, and no data.test", NULL},
        {"bench --any-order", "heddle bench: --any-order is for --tune", NULL},
        {"data tokenize --tokenizer t --to x --chat-template plain --field f a.jsonl",
         "heddle data: --field has no effect with --chat-template", NULL},
        {"data tokenize --tokenizer t --to x --chat-template plain --no-special a.jsonl",
         "heddle data: --no-special has no effect with --chat-template", NULL},
        {DRY "--print-config", "heddle train: --print-config prints and looks at nothing, as --dry-run would", NULL},
        {DRY "metrics.jsonl=.", "command line: metrics.jsonl: .: Is a directory", NULL},
        {DRY "metrics.jsonl=tokens.bin/x", "metrics.jsonl: tokens.bin/x: Not a directory", NULL},
        {DRY "metrics.jsonl=pipe", "metrics.jsonl: pipe: not a regular file but a FIFO", NULL},
        {DRY "metrics.blocks=.", "command line: metrics.blocks: .: Is a directory", NULL},
        {DRY "metrics.blocks=tokens.bin", "command line: metrics.blocks: tokens.bin is there, and heddle did not",
         NULL},
        {DRY "metrics.blocks=blocks.json", "command line: metrics.blocks: blocks.json: CSV is written there",
         "ends in .csv: call it so"},
        {DRY "checkpoint.dir=/proc/ck", "command line: checkpoint.dir: /proc/ck: ", NULL},
        {DRY "metrics.jsonl=/proc/m.jsonl", "command line: metrics.jsonl: /proc/m.jsonl: ", NULL},
        {DRY "metrics.jsonl=folder.yaml",
         "command line: metrics.jsonl: folder.yaml: its first line does not start a run", NULL},
        {DRY "metrics.jsonl=tokens.bin", "command line: metrics.jsonl: tokens.bin is a file of the job's data", NULL},
        {DRY "checkpoint.resume=.", "command line: checkpoint.resume: . is no checkpoint: name its folder, as runs/",
         NULL},
        {DRY "checkpoint.resume=config/step-00000007",
         "command line: checkpoint.resume: config has no checkpoint step-00000007: `heddle ckpt ls` lists them", NULL},
        {DRY "checkpoint.resume=never-made", "checkpoint.resume: runs/folder/checkpoints has no checkpoint never-made",
         NULL},
        {DRY "checkpoint.dir=tokens.bin", "command line: checkpoint.dir: tokens.bin: Not a directory", NULL},
        {DRY "model.from=config",
         "command line: model.from: config: holds neither model.safetensors nor model.safetensors.index.json: fetch "
         "them; to begin with random weights",
         NULL},
        {"train llama.yaml comm.timeout=1ms", "comm.timeout: 1ms is out of range: 0.01 to 1000000 seconds", NULL},
        {"train folder.yaml model.from=config", "command line: model.from: config: holds neither", NULL},
        {"eval folder.yaml model.from=config data.val_fraction=0.1", "command line: model.from: config: holds", NULL},
        {"sample folder.yaml model.from=config", "command line: model.from: config: holds", NULL},
        {DRY "model.from=larger", "larger/model.safetensors: tensor ", "another model?"},
        {DRY "model.from=empty", "is empty ([0]): was it saved under ZeRO-3 without gathering the parameters?",
         "zero_to_fp32.py"},
        {DRY "model.from=pointer", "command line: model.from: pointer/model.safetensors: is a Git LFS pointer",
         "git lfs pull"},
        {"train llama.yaml --dry-run data.tokenizer=lfs", "data.tokenizer: lfs/tokenizer.json: is a Git LFS pointer",
         "git lfs pull"},
        {DRY "model.from=pickled", "command line: model.from: pickled: holds neither model.safetensors nor",
         "pytorch_model.bin is not read"},
        {DRY "model.from=parts",
         "command line: model.from: parts: holds neither model.safetensors nor model.safetensors.index.json; it has "
         "model-00001-of-00002.safetensors: fetch the index",
         NULL},
        {DRY "model.from=drop", "command line: model.from: drop/config.json: \"attention_dropout\" is 0.1",
         "say model.dropout: 0 to train without"},
        {"train folder.yaml model.from=drop mesh.dp=2 data.batch=2", "\"attention_dropout\" is 0.1", NULL},
        {"check folder.yaml model.dropout=0.1", "command line: model.dropout is 0.1, but heddle has no dropout", NULL},
        {NULL, NULL, NULL}};
    static const char *const fine[] = {DRY "metrics.jsonl=new/a/b.jsonl checkpoint.dir=new/c",
                                       DRY "mesh.pp=2 data.batch=2",
                                       DRY "model.from=drop model.dropout=0",
                                       "check folder.yaml model.from=drop",
                                       "explain folder.yaml model.from=config",
                                       "check folder.yaml model.from=config mesh.dp=2 data.batch=2",
                                       "eval folder.yaml model.from=drop data.val_fraction=0.1",
                                       "sample folder.yaml model.from=drop --tokens 2"};
    ck_assert_int_eq(
        system(
            "rm -rf hf pipe && mkdir config larger pointer pickled parts && cp -r " GOLDEN_DIR
            "/llama drop && cp -r " GOLDEN_DIR "/llama hf && "
            "cp hf/config.json config && cp hf/config.json parts && touch parts/model-00001-of-00002.safetensors && "
            "mkfifo pipe && cp hf/model.safetensors larger && "
            "mkdir empty && cp hf/config.json empty && { printf '\\120\\0\\0\\0\\0\\0\\0\\0'; printf %-80s "
            "'{\"model.embed_tokens.weight\":"
            "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}'; } > empty/model.safetensors && "
            "sed 's/\"intermediate_size\": [0-9]*/\"intermediate_size\": 512/' hf/config.json > larger/config.json && "
            "sed -i 's/\"attention_dropout\": 0.0/\"attention_dropout\": 0.1/' drop/config.json && "
            "cp hf/config.json pointer && cp hf/config.json pickled && touch pickled/pytorch_model.bin && "
            "echo 'version https://git-lfs.github.com/spec/v1' > pointer/model.safetensors && mkdir lfs && "
            "cp pointer/model.safetensors lfs/tokenizer.json"),
        0);
    write_folder_job("hf");
    expect_rows(rows);
    for (size_t i = 0; i < HD__COUNT(fine); i++) {
        struct command *c = command_run("%s", fine[i]);
        ck_assert_msg(c->code == 0 && !strstr(c->err, "dropout"), "`%s`: exit code %d; it said:\n%s%s", fine[i],
                      c->code, c->out, c->err);
    }
    ck_assert_int_eq(access("new", F_OK), -1);
}
END_TEST

START_TEST(weights_that_are_nan)
{
    static const struct row rows[] = {
        {"train folder.yaml model.from=broken", "broken/model.safetensors: tensor ", "has NaN among its values"},
        {"eval folder.yaml model.from=broken data.val_fraction=0.1", "broken/model.safetensors: tensor ",
         "has NaN among its values"},
        {"eval folder.yaml model.from=broken data.val_fraction=0.1 mesh.dp=2 data.batch=2",
         "broken/model.safetensors: tensor ", "has NaN among its values"},
        {"sample folder.yaml model.from=broken --prompt 1", "broken/model.safetensors: tensor ",
         "has NaN among its values"},
        {NULL, NULL, NULL}};
    ck_assert_int_eq(system("cp -r " GOLDEN_DIR "/llama broken && head -c -8 " GOLDEN_DIR
                            "/llama/model.safetensors > broken/model.safetensors && "
                            "printf '\\377\\377\\377\\377\\377\\377\\377\\377' >> broken/model.safetensors"),
                     0);
    write_folder_job("broken");
    expect_rows(rows);
}
END_TEST

/* --dry-run asks what opens while a job starts, and refuses what that would, in its words. */
START_TEST(dry_runs_of_what_opens)
{
#define OPENS "opens.yaml "
#define TWO OPENS "mesh.dp=2 data.batch=2 "
    static const struct row rows[] = {
        {TWO "comm.hooks=[{\"use\":\"faults\",\"rank\":5}]",
         "command line: comm.hooks: faults.rank: 5: give a rank from 0 to 1", NULL},
        {TWO "comm.hooks=[{\"use\":\"faults\",\"when\":\"closing\",\"kind\":\"drop\"}]", "drop needs when: operation",
         NULL},
        {TWO "strategies=[{\"use\":\"zero\",\"stage\":3,\"offload\":{\"optimizer\":\"file\",\"path\":\"/nowhere\"}}]",
         "cannot create the offload file in /nowhere (offload.path): No such file or directory", NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"port\":0,\"address\":\"300.1.1.1\"}]",
         "command line: metrics.sinks.0: address: '300.1.1.1' is no numeric address", NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"nowhere/x.prom\"}]",
         "command line: metrics.sinks.0: nowhere/x.prom.tmp: No such file or directory", NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"x.txt\"}]", "files that end with .prom alone",
         NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\"}]", "there is nowhere to write to: set port, textfile or both",
         NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"/proc/x.prom\"}]",
         "metrics.sinks.0: /proc/x.prom.tmp: No such file", NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"textfile\":\"dir.prom\"}]",
         "metrics.sinks.0: dir.prom: Is a directory", NULL},
        {OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"port\":31999},"
               "{\"use\":\"prometheus\",\"port\":31999,\"machine\":false}]",
         "port 31999 of 127.0.0.1 cannot be listened at: Address already in use", NULL},
        {OPENS "metrics.tensorboard=~/tb", "metrics.tensorboard: '~/tb': ~, $ and ` are not expanded: ", NULL},
        {OPENS "metrics.tensorboard=''", "metrics.tensorboard: the name of its folder is empty", NULL},
        {OPENS "metrics.tensorboard=/proc/tb", "command line: metrics.tensorboard: /proc/tb", NULL},
        {OPENS "metrics.tensorboard=tokens.bin/tb", "Not a directory", NULL},
        {OPENS "metrics.tensorboard=dangling", "command line: metrics.tensorboard: dangling", NULL},
        {OPENS "job.name=dangling", "runs/dangling/", "No such file or directory"},
        {OPENS "checkpoint.dir=ck checkpoint.resume=never",
         "command line: checkpoint.resume is never, and ck has checkpoints",
         "checkpoint.resume=overwrite, which moves them to ck.1"},
        {"llama.yaml checkpoint.dir=other model.layers=3", "model.layers is 3 and was ", "is of another model"},
        {"llama.yaml checkpoint.dir=other model.layers=3 checkpoint.resume=other/step-00000002",
         "model.layers is 3 and was ", "is of another model"},
        {OPENS "checkpoint.dir=damaged", "has 9 bytes, written were ",
         "damaged has no older one: checkpoint.resume=overwrite starts over"},
        {OPENS "checkpoint.dir=ck/step-00000002", "command line: checkpoint.dir: ck/step-00000002 is one checkpoint",
         "checkpoint.resume goes on from it"},
        {OPENS "checkpoint.dir=torn", "checkpoint.resume: torn/step-00000002 has no index.json that can be read", NULL},
        {OPENS "checkpoint.dir=s3://bucket/x checkpoint.region=eu-west-1",
         "command line: s3://bucket/x: AWS_ACCESS_KEY_ID is not set", NULL},
        {NULL, NULL, NULL}};
    static const char *const fine[] = {
        OPENS "checkpoint.dir=ck checkpoint.resume=overwrite",
        OPENS "checkpoint.dir=ck job.steps=9",
        OPENS "checkpoint.dir=ck checkpoint.resume=step-00000002",
        OPENS "checkpoint.dir=older job.steps=9",
        OPENS "metrics.tensorboard=new/a",
        OPENS "metrics.sinks=[{\"use\":\"prometheus\",\"port\":0,\"textfile\":\"x.prom\"}]",
        TWO "strategies=[{\"use\":\"zero\",\"stage\":3,\"offload\":{\"optimizer\":\"file\",\"path\":\".\"}}]"};
    write_file("opens.yaml", "job: {steps: 2, name: opens}\noptimizer: {use: adamw, lr: 1e-3}\n"
                             "model: {use: transformer, from: hf}\n"
                             "data: {train: tokens.bin, seq_len: 8, batch: 1}\n");
    int32_t tokens[1000];
    for (int i = 0; i < 1000; i++)
        tokens[i] = i % 32 << 16 | i % 31;
    FILE *file = fopen("tokens.bin", "wb");
    ck_assert_uint_eq(fwrite(tokens, 1, sizeof tokens, file), sizeof tokens);
    fclose(file);
    ck_assert_int_eq(system("rm -rf hf runs; mkdir runs && cp -r " GOLDEN_DIR "/llama hf && "
                            "mkdir dir.prom && ln -s nowhere dangling && ln -s nowhere runs/dangling"),
                     0);
    expect_code(command_run("train opens.yaml checkpoint.dir=ck checkpoint.every=1"), 0);
    expect_code(command_run("train llama.yaml checkpoint.dir=other job.steps=2 job.name=other"), 0);
    ck_assert_int_eq(system("cp -r ck torn && rm -rf torn/step-00000001 torn/*2/index.json && cp -r ck older && "
                            "truncate -s 9 older/*2/model-* && cp -r older damaged && rm -rf damaged/step-00000001"),
                     0);
    for (const struct row *r = rows; r->words; r++)
        for (int dry = 1; dry >= 0; dry--) {
            struct command *c = command_run_env("AWS_ACCESS_KEY_ID= AWS_SECRET_ACCESS_KEY=", "train %s %s", r->words,
                                                dry ? "--dry-run" : "");
            ck_assert_msg(c->code == 2 && strstr(c->err, r->message) && (!r->also || strstr(c->err, r->also)),
                          "`%s` with%s --dry-run: exit code %d; it said:\n%s", r->words, dry ? "" : "out", c->code,
                          c->err);
        }
    struct command *c = command_run_env("AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b",
                                        "train " OPENS "checkpoint.dir=s3://bucket/x checkpoint.retries=3 "
                                        "checkpoint.endpoint=http://127.0.0.1:1 --dry-run");
    expect_code(c, 2);
    expect_says(c, "; trying again, up to 3 times within ");
    expect_says(c, "(tried 4 times)");
    ck_assert_int_eq(system("touch after && ls -AR -I 'err-*' -I 'out-*' > before"), 0);
    for (size_t i = 0; i < HD__COUNT(fine); i++)
        expect_code(command_run("train --dry-run %s", fine[i]), 0);
    ck_assert_int_eq(system("ls -AR -I 'err-*' -I 'out-*' > after; diff before after"), 0);
    ck_assert_int_eq(system("rm -rf runs hf ck other torn older damaged dangling dir.prom"),
                     0); /* other tests want none */
}
END_TEST

/* An escape sequence in a file is no command to the terminal. */
START_TEST(escapes)
{
    static const char *const rows[] = {"check llama.yaml model.from=esc", "train llama.yaml data.train=esc/a.npy",
                                       "check esc/job.yaml", "train llama.yaml data.train=\x1b[31mred"};
    ck_assert_int_eq(system("mkdir esc"), 0);
    write_file("esc/config.json", "{\"model_type\": \"\\u001b[31m\\u009bred\"}");
    write_file("esc/job.yaml", "job: {steps: 1}\noptimizer: {use: \"\\e[31mred\", lr: 1}\n"
                               "model: {use: transformer, family: llama, layers: 1, hidden: 8, heads: 1, vocab: 256}\n"
                               "data: {train: corpus.txt, seq_len: 8, batch: 1}\n");
    FILE *file = fopen("esc/a.npy", "wb");
    static const char npy[] = "\x93NUMPY\1\0\x40\0{'descr': '\x1b[31m', 'fortran_order': False, 'shape': (80,), }";
    ck_assert_uint_eq(fwrite(npy, 1, sizeof npy, file), sizeof npy);
    for (int i = 0; i < 256; i++)
        fputc(0, file);
    fclose(file);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i]);
        expect_code(c, 2);
        ck_assert_msg(strstr(c->err, "?[31m") && !strchr(c->err, 0x1b) && !strstr(c->err, "\xc2\x9b"), "it said: %s",
                      c->err);
    }
}
END_TEST

/* A token is looked at before the start; where that was not asked for, when it is read: the step that meets it ends
 * the run, on whichever rank. */
START_TEST(beyond_the_vocabulary)
{
    static const struct row rows[] = {
        {"train llama.yaml model.vocab=123 data.format=bytes data.train=high.txt",
         "command line: data.train: high.txt: token 600 is 126, outside the model's vocabulary of 123", NULL},
        {"train llama.yaml model.vocab=123 data.format=bytes data.train=high.txt mesh.dp=2 --dry-run",
         "high.txt: token 600 is 126", NULL},
        {"train llama.yaml model.vocab=123 data.format=bytes data.train=high.txt data.check_tokens=601",
         "high.txt: token 600 is 126", NULL},
        {"train llama.yaml model.vocab=123 data.format=bytes data.train=low.txt data.val=high.txt eval.every=1",
         "data.val: high.txt: token 600 is 126", NULL},
        {"train llama.yaml data.train=labels.npy",
         "labels.npy: token 0 is -100, outside the model's vocabulary of 256: -100 is for labels that do not count: ",
         "save input_ids instead"},
        {NULL, NULL, NULL}};
    char text[2000];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = (char)('a' + i % 26);
    text[sizeof text - 1] = 0;
    write_file("low.txt", text);
    text[600] = '~'; /* 126 */
    write_file("high.txt", text);
    ck_assert_int_eq(system("{ printf '\\223NUMPY\\001\\000\\166\\000'; printf '%-117s\\n' \"{'descr': '<i4', "
                            "'fortran_order': False, 'shape': (256,), }\"; for i in $(seq 256); do printf "
                            "'\\234\\377\\377\\377'; done; } > labels.npy"),
                     0);
    expect_rows(rows);
    for (int n = 1; n <= 2; n++) {
        struct command *c = command_run(
            "train llama.yaml job.name=beyond model.vocab=123 data.format=bytes data.train=high.txt data.shuffle=false "
            "data.check_tokens=600 mesh.dp=%d",
            n);
        static struct curve curve;
        expect_code(c, 1);
        expect_says(c, "high.txt: token 600 is 126, outside the model's vocabulary of 123: is model.vocab its ");
        curve_read(&curve, "beyond");
        ck_assert_int_eq(curve.n, 2); /* 8 sequences of 32: the third step reads it */
    }
}
END_TEST

START_TEST(plugins)
{
    static const struct row rows[] = {
        {"train llama.yaml strategies.0.use=zeroo",
         "command line: there is no plugin strategy-zeroo: did you mean strategy-zero?", NULL},
        {"train llama.yaml optimizer={\"use\":\"adam\",\"lr\":1}",
         "there is no plugin optim-adam: did you mean optim-adamw?", NULL},
        {"train llama.yaml optimizer={\"use\":\"mylion\",\"lr\":1}", "there is no plugin optim-mylion: ", NULL},
        {"train llama.yaml device.use=abacus", "there is no plugin device-abacus", "heddle-device-abacus.so"},
        {"train llama.yaml comm.use=pigeon mesh.dp=2", "there is no plugin comm-pigeon; there are ", "shm"},
        {"train llama.yaml checkpoint.use=stone", "there is no plugin ckpt-stone", NULL},
        {"train llama.yaml model.use=transformers",
         "there is no plugin model-transformers: did you mean model-transformer?", NULL},
        {"train llama.yaml plugins.path=[nowhere]", "command line: plugins.path: 'nowhere' is not a folder",
         "name the one that its plugins lie in"},
        {"train llama.yaml plugins.path=bad optimizer={\"use\":\"text\"}", "bad/heddle-optim-text.so", NULL},
        {NULL, NULL, NULL}};
    expect_code(command_run("plugins"), 0);
    ck_assert_int_eq(system("mkdir -p bad && echo no library > bad/heddle-optim-text.so"), 0);
    expect_rows(rows);
    struct command *c = command_run("train llama.yaml --print-config optimizer.use=optim-adamw comm.hooks=[hook-check] "
                                    "strategies=[{\"use\":\"strategy-zero\",\"stage\":1}]");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "use: adamw ") && strstr(c->out, "use: zero "), "it printed: %s", c->out);
    expect_code(command_run("train llama.yaml --dry-run optimizer.use=optim-adamw comm.hooks=[hook-check]"), 0);
}
END_TEST

/* Refused from the plan, without having asked for the memory. */
/* One rank goes on without the transport that the job names: it is told that there is none. */
START_TEST(a_transport_that_is_not_here)
{
    struct command *one = command_run("check llama.yaml comm.use=foo"),
                   *two = command_run("check llama.yaml mesh.dp=2 comm.use=foo");
    ck_assert_msg(one->code == 0, "exit code %d: %s", one->code, one->err);
    expect_says(one, "comm.use: there is no plugin comm-foo");
    ck_assert_msg(two->code == 2, "exit code %d: %s", two->code, two->err);
    expect_says(two, "command line: there is no plugin comm-foo");
}
END_TEST

START_TEST(does_not_fit)
{
    static const struct row rows[] = {
        {"train llama.yaml model.layers=80 model.hidden=65536", "does not fit: the arena takes ", " are free"},
        {"train llama.yaml model.layers=80 model.hidden=65536 mesh.dp=2 strategies.zero.stage=3",
         "does not fit: the arena of a rank takes ", "2 ranks here take "},
        {"train llama.yaml data.batch=1000000000 data.micro_batch=1000000000", "does not fit: ", "micro_batch"},
        {NULL, NULL, NULL}};
    expect_rows(rows);
}
END_TEST

START_TEST(command_lines)
{
    static const struct {
        const char *words, *message;
    } rows[] = {
        {"", "usage: heddle COMMAND"},
        {"trian llama.yaml", "there is no command 'trian': did you mean 'train'?"},
        {"help trian", "there is no command 'trian'"},
        {"train", "which job file?"},
        {"train llama.yaml gpt2.yaml", "two job files: llama.yaml and gpt2.yaml"},
        {"train llama.yaml job.steps", "an override is written key=value"},
        {"train llama.yaml --frobnicate", "there is no option --frobnicate (`heddle help train`)"},
        {"explain llama.yaml --rank", "--rank needs a value"},
        {"explain llama.yaml --rank 1", "--rank 1: the job has ranks 0 to 0"},
        {"explain llama.yaml --rank one", "--rank one"},
        {"explain llama.yaml --section upgrade", "there is no section 'upgrade'; there are begin, micro"},
        {"plugins strategy-none", "there is no plugin 'strategy-none'"},
        {"explain llama.yaml --timeline step.png", "--timeline step.png: it writes FILE.svg or FILE.json"},
        {"explain llama.yaml --timeline no/such/step.svg", "--timeline: no/such/step.svg: No such file"},
        {"explain llama.yaml --timeline no/such/step.json", "--timeline: no/such/step.json: No such file"},
        {"sample llama.yaml --temp 1", "there is no option --temp: did you mean --temperature?"},
        {"sample llama.yaml --tokens few", "--tokens few: wanted a whole number"},
        {"sample llama.yaml --top-k 1.5", "--top-k 1.5: wanted a whole number from 0"},
        {"sample llama.yaml --temperature warm", "--temperature warm: wanted a number from 0 to 100"},
        {"sample llama.yaml --random-weights --use bpe",
         "--use bpe: there is no tokenizer for it to read: name a file"},
        {"sample llama.yaml --random-weights --tokenizer none --prompt 999",
         "--prompt: there is no tokenizer: wanted token ids from 0 to 255 with blanks between them"},
        {"plugins here/heddle-optim-x.so", "KIND-NAME is wanted, and HEDDLE_PLUGIN_PATH=FOLDER where it lies"},
        {"ckpt export llama.yaml checkpoint.dir=x --to ./x", "--to ./x: that is checkpoint.dir: name another folder"},
        {"ckpt burn llama.yaml", "there is no 'ckpt burn'"},
        {"ckpt ls llama.yaml checkpoint.dir=x --to y", "--to is for export"},
        {"ckpt verify llama.yaml checkpoint.dir=x --json", "--json is for ls and show"},
        {"ckpt ls llama.yaml checkpoint.dir=x --checkpoint step-00000001", "ls lists all: no --checkpoint"},
        {"bench --op sum", "--op 'sum': wanted names with commas between them: all_reduce, "},
        {"bench --ranks 2000", "--ranks '2000': wanted a whole number from 1 to 1024"},
        {"calibrate --comm none --ranks 1024", "warning: --ranks 1024: this machine has "},
        {"bench -b nan", "-b 'nan': wanted a size"},
        {"bench -f inf", "-f 'inf': wanted a number above 1"},
        {"bench --timeout inf", "--timeout 'inf': wanted seconds from 0.01"},
        {"bench -b 1 -e 3", "-e is below -b, or below the 4 bytes of a number"},
        {"bench -d uint8 -b 4 -e 3", "-e is below -b, or below the 1 byte of a number"},
        {"bench -b 8T -e 8T", "two buffers of 2 ranks take 32.0 TiB, and "},
        {"bench --tune t.json --json", "--tune is of one transport"},
        {"bench --tune no/such/t.json", "no/such/t.json: No such file or directory"},
        {"ckpt export llama.yaml checkpoint.dir=x", "export needs --to FOLDER"},
        {"version 2", "it does not know '2'"},
        {"help train 2", "heddle help: one command at a time: '2' is too many"},
        {"explain llama.yaml --rank 0 --rank 0", "--rank is given twice"},
        {"explain llama.yaml --section --rank 0", "--section needs a value"},
        {"ckpt verify llama.yaml checkpoint.dir=x --weights ema", "--weights is for export"},
        {"bench --ranks 2 --ranks 2", "--ranks is given twice"},
        {"bench --html --json", "--html wants a value"},
        {"bench --train llama.yaml -b 1K", "-b does not go with --train"},
        {"bench --comm comm-pigeon", "there is no plugin comm-pigeon; there are "},
        {"bench llama.yaml", "there is no option llama.yaml: a job goes behind --train"},
        {"bench -g 2", "there is no option -g: a rank is a process; --ranks N starts so many"},
        {"train llama.yaml strategies=[{use: zero, stage: 3}]",
         "'strategies=[{use:' ends inside of brackets: write quotes around it"},
        {"train strategies=[{use: zero}] llama.yaml", "'strategies=[{use:' ends inside of brackets"},
        {"debug .", "not a regular file but a folder; a failed job prints the path of its report: report-TIME.json"},
        {"trace llama.yaml --out t.svg", "--out t.svg: it writes FILE.json"},
        {"bench --html a --svg a", "--html and --svg name one file"},
        {"train llama.yaml model.heads=16 model.kv_heads=16 model.hidden=16",
         "model.heads: 16 heads of model.hidden 16 are 1 wide each, which must be even"},
        {"train llama.yaml optimizer.clip=-1", "optimizer.clip: -1 is too small: at least 0, and 0 for no clipping"},
        {"train llama.yaml data.train=[{\"path\":\"corpus.txt\",\"weight\":0}]",
         "weight is 0, so it would never be read: leave the file out"},
        {"plan llama.yaml --machine cpu --tokens 100", "--tokens 100 is less than a step, which has "},
        {"explain llama.yaml --timeline --rates link=10",
         "'link=10' is below a million: rates are FLOPs or bytes a second; a link of 10 Gbit/s is link=1.25e9"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i].words);
        ck_assert_msg(c->code == 2 && !*c->out, "`%s`: exit code %d; it said: %s", rows[i].words, c->code, c->out);
        expect_says(c, rows[i].message);
    }
    int status = system(HEDDLE " train '' llama.yaml 2>said.txt");
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 2 && strstr(read_file("said.txt"), "an argument is empty"));
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"job files", job_files, 1},
                                        {"several", several, 1},
                                        {"words of others", words_of_others, 1},
                                        {"keys", keys, 1},
                                        {"meshes", meshes, 1},
                                        {"data files", data_files, 1},
                                        {"paths of a shell", paths_of_a_shell, 1},
                                        {"dry runs", dry_runs, 1},
                                        {"weights that are nan", weights_that_are_nan, 1},
                                        {"dry runs of what opens", dry_runs_of_what_opens, 1},
                                        {"weights without a place", weights_without_a_place, 1},
                                        {"weights in another layout", weights_in_another_layout, 1},
                                        {"sections mixed up", sections_mixed_up, 1},
                                        {"escapes", escapes, 1},
                                        {"plugins", plugins, 1},
                                        {"does not fit", does_not_fit, 1},
                                        {"a transport that is not here", a_transport_that_is_not_here, 1},
                                        {"command lines", command_lines, 1},
                                        {"beyond the vocabulary", beyond_the_vocabulary, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-refusals", tests);
}
