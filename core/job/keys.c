/* The keys of the core's own sections. Offsets are into struct hd__job; keys that need a reader of their own
 * (core/job/composite_keys.c) point at `special`. */
#include "core/base/dtype.h"
#include "core/job/internal.h"

#include <math.h>

#define AT(field) offsetof(struct hd__job, field)
#define G HD_OPTION_GLOBAL
#define R HD_OPTION_REQUIRED
#define P HD_OPTION_PATH
#define ANY .min = 0, .max = 0
#define FROM(low) .min = low, .max = INFINITY
#define WITHIN(low, high) .min = low, .max = high
/* name, type, default, range (one of the three above), flags, field, help and what else there is */
/* clang-format off */
#define KEY(n, t, v, range, f, field, ...) \
    {.name = n, .type = HD_OPT_##t, .value = v, range, .flags = f, .offset = AT(field), .help = __VA_ARGS__}
/* clang-format on */
#define NAMED(words) .choices = words
#define RANKS .needs = "ranks!=1"

static const struct hd_option job_keys[] = {
    KEY("name", STRING, NULL, ANY, 0, name, "names the run's folder; the file's name without .yaml if left out"),
    KEY("steps", INT, NULL, FROM(1), G, steps, "optimizer steps to train; this or epochs", .unit = "steps",
        .aliases = "max_steps|max_iters|train_iters"),
    KEY("epochs", FLOAT, NULL, WITHIN(0.001, 1e6), G, epochs,
        "passes over data.train, in place of steps: so many steps as it takes, the last one whole", .unit = "epochs",
        .aliases = "num_train_epochs|num_epochs|max_epochs"),
    KEY("seed", INT, "1337", FROM(0), G, seed, "seed of initial weights and of the order of data"),
    KEY("deterministic", ENUM, "normal", ANY, G, deterministic,
        "exact: the order of every sum is fixed whatever the mesh", NAMED("normal|exact")),
};

static const struct hd_option launch_keys[] = {
    KEY("ranks", INT, NULL, WITHIN(1, 65536), 0, launch_ranks,
        "processes that heddle starts on each machine, where no outer launcher does; the mesh's own number, over all "
        "machines, if left out",
        .aliases = "nproc_per_node"),
    KEY("nodes", STRING, "1", ANY, 0, launch_nodes,
        "machines: N, or MIN:MAX to go on with those that are there; `heddle train` is started once on each",
        .aliases = "nnodes"),
    KEY("machine", STRING, NULL, ANY, P, launch_machine,
        "the kind of machine that mesh: auto and strategies: auto choose for: NAME | FILE.yaml, as of `heddle plan`; "
        "cpu, if left out, with device cpu"),
    KEY("rendezvous", STRING, NULL, ANY, P, launch_rendezvous,
        "where the machines of launch.nodes meet: HOST:PORT of node 0, [ADDRESS]:PORT for IPv6; PORT + 1 is used, too",
        .aliases = "rdzv_endpoint"),
    KEY("scale_batch", ENUM, "never", ANY, G, scale_batch,
        "where fewer machines train than the most of launch.nodes, data.batch shrinks with them, and the learning rate "
        "as the batch does (linear) or as its square root (sqrt)",
        NAMED("never|linear|sqrt")),
    KEY("restarts", INT, "0", WITHIN(0, 1e6), 0, launch_restarts,
        "how often in a row, without a newer checkpoint in between, all ranks are started again after one has failed",
        .aliases = "max_restarts"),
    KEY("pause", DURATION, "30s", WITHIN(0, 1e6), 0, launch_pause,
        "before a restart; twice as long before each further one in a row, up to 10 minutes"),
    KEY("time_limit", DURATION, NULL, WITHIN(0.01, 1e8), 0, launch_time_limit,
        "the job saves and ends before so long has passed; before SLURM_JOB_END_TIME it does in any case"),
    KEY("margin", DURATION, "60s", WITHIN(0, 1e6), 0, launch_margin,
        "how long before time_limit or Slurm's end it begins to; earlier where a step and a save have taken longer"),
    KEY("notice", LIST, NULL, ANY, 0, special,
        "of a machine that is about to be taken away: {file: PATH} that appears, or {command: WORDS} that exits with "
        "0, asked every 5s or {every: DURATION}; the job saves and ends"),
};

static const struct hd_option plugins_keys[] = {
    KEY("path", LIST, "[]", ANY, 0, plugin_path, "folders that are searched for plugins first"),
};

static const struct hd_option device_keys[] = {
    KEY("staging", SIZE, "4MiB", WITHIN(4096, 1e12), G, device_staging,
        "of a device with memory of its own: transports that take host memory get chunks of about so many",
        .unit = "bytes", .level = HD_LEVEL_TUNER, .needs = "device.use!=cpu"),
    KEY("capture", BOOL, "true", ANY, G, device_capture,
        "what a step launches without the host is launched as one, where the device can (a CUDA graph)",
        .level = HD_LEVEL_TUNER, .needs = "device.use!=cpu"),
};

static const struct hd_option liveness_keys[] = {
    KEY("dead_after", DURATION, "5s", WITHIN(0.01, 1e6), G, comm_dead_after,
        "all others have ended so long after a rank died or fell silent", RANKS),
    KEY("late_after", DURATION, "10s", WITHIN(0.01, 1e6), 0, late_after,
        "a rank that others wait for longer is named in the log, and again whenever the wait has doubled", RANKS),
    KEY("operations", INT, "64", WITHIN(8, 128), 0, flight_operations, /* so many fit into a dump */
        "how many of its last operations each rank remembers for a report", RANKS),
};

static const struct hd_option comm_keys[] = {
    KEY("axes", LIST, NULL, ANY, G, special,
        "transports that differ by mesh axis: {dp: mpi}, or {dp: {use: mpi, ...}}"),
    KEY("hooks", LIST, NULL, ANY, G, special, "wrappers around the transport, the outermost first: [check, trace]",
        RANKS),
    KEY("inside", STRING, NULL, ANY, G, special,
        "another transport inside machines; collectives of several machines then go in two levels", RANKS),
    KEY("levels", LIST, "machine", ANY, G, special,
        "whose ranks comm.inside serves: those of a machine, a package of it, or a NUMA node (numa); several, the "
        "outermost first: [machine, numa]"),
    KEY("sums", ENUM, "tree", ANY, G, comm_sums,
        "over send and recv: in one tree whatever the algorithm, or in any order that is the same on all ranks and in "
        "all runs",
        NAMED("tree|any"), RANKS),
    KEY("tune", STRING, NULL, ANY, P, comm_tune, "a file of `heddle bench --tune`: which algorithm for which size",
        RANKS),
    KEY("timeout", DURATION, "300s", WITHIN(0.01, 1e6), G, comm_timeout, "longest wait of any operation", RANKS),
    KEY("progress", ENUM, "between", ANY, 0, comm_progress,
        "who moves data while a rank computes: it itself between instructions, or a thread", NAMED("between|thread"),
        RANKS),
    KEY("dead_after", DURATION, NULL, WITHIN(0.01, 1e6), G, comm_dead_after,
        "an older name of liveness.dead_after: say one of them", RANKS),
};

#define ONLY_DP .words = "auto=?only mesh.dp may be auto"
static const struct hd_option mesh_keys[] = {
    KEY("pp", INT, "1", WITHIN(1, 1048576), G, mesh_asked[HD_AXIS_PP], "pipeline stages",
        .aliases = "pipeline_parallel|pipeline_parallel_degree|pipeline_model_parallel_size", ONLY_DP),
    KEY("dp", STRING, "auto", ANY, G, special, "data parallel: N, auto, or {replicate: R, shard: S}, one of them auto",
        .aliases = "data_parallel|data_parallel_degree"),
    KEY("cp", INT, "1", WITHIN(1, 1048576), G, mesh_asked[HD_AXIS_CP], "context parallel",
        .aliases = "context_parallel|context_parallel_degree|context_parallel_size", ONLY_DP),
    KEY("ep", INT, "1", WITHIN(1, 1048576), G, mesh_asked[HD_AXIS_EP], "expert parallel",
        .aliases = "expert_parallel|expert_parallel_degree|expert_model_parallel_size", ONLY_DP),
    KEY("tp", INT, "1", WITHIN(1, 1048576), G, mesh_asked[HD_AXIS_TP], "tensor parallel",
        .aliases = "tensor_parallel|tensor_parallel_degree|tensor_model_parallel_size", ONLY_DP),
};

static const struct hd_option schedule_keys[] = {
    KEY("kind", ENUM, "constant", ANY, G, schedule.kind, "learning rate after warm-up",
        NAMED("constant|linear|cosine|wsd"), .aliases = "type|lr_scheduler_type|lr_decay_style",
        .words = "constant_with_warmup=constant|WarmupLR=constant|WarmupDecayLR=linear|WarmupCosineLR=cosine|"
                 "cosine_with_min_lr=cosine|warmup_stable_decay=wsd|"
                 "polynomial=?linear is the polynomial of power 1; other powers are not offered|"
                 "inverse_sqrt=?not offered; cosine and wsd also fall from a peak|"
                 "cosine_with_restarts=?not offered; cosine falls once"),
    KEY("warmup", INT, "0", FROM(0), G, schedule.warmup, "the rate rises as lr step/warmup", .unit = "steps",
        .aliases = "warmup_steps|warmup_iters|num_warmup_steps|warmup_num_steps|lr_warmup_iters"),
    KEY("min_lr", FLOAT, "0", FROM(0), G, schedule.min_lr, "where linear, cosine and wsd end", .aliases = "lr_min"),
    KEY("decay", INT, "0", FROM(0), G, schedule.decay, "wsd: length of the last phase; 0: a tenth of all",
        .unit = "steps"),
    KEY("decay_shape", ENUM, "linear", ANY, G, schedule.decay_shape, "wsd: how the last phase falls",
        NAMED("linear|cosine|sqrt")),
};

static const struct hd_option data_keys[] = {
    KEY("train", LIST, NULL, ANY, G | R | P, special, "a file, a list, or [{path: a.txt, weight: 0.7}, ...]"),
    KEY("val", LIST, NULL, ANY, G | P, special,
        "the same, for evaluation; or several sets by name: {wiki: a.bin, code: [b.bin, c.bin]}"),
    KEY("test", LIST, NULL, ANY, G | P, special, "the same as train, for `heddle eval --split test` alone"),
    KEY("val_fraction", FLOAT, "0", WITHIN(0, 0.99), G, val_fraction,
        "the last part of train, held out for evaluation"),
    KEY("seq_len", INT, NULL, WITHIN(1, 1 << 30), G | R, seq_len, "length of a sequence", .unit = "tokens",
        .aliases = "sequence_length|seq_length|max_seq_length|block_size"),
    KEY("batch", INT, NULL, WITHIN(1, 1 << 30), G | R, batch, "size of one step, over all ranks", .unit = "sequences",
        .aliases = "global_batch|global_batch_size|train_batch_size"),
    KEY("micro_batch", INT, NULL, WITHIN(1, 1 << 30), G, micro_batch_asked,
        "size of one micro-batch on one data coordinate; batch / (dp x ep) if left out", .unit = "sequences",
        .aliases = "micro_batch_size|train_micro_batch_size_per_gpu|per_device_train_batch_size"),
    KEY("micro_batches", LIST, "auto", ANY, G, special,
        "micro-batches of a step on each of mesh.dp, for ranks of different speed: [9, 3]; data.batch is micro_batch x "
        "ep x their sum; auto: the same number on all"),
    KEY("pad_batch", ENUM, "auto", ANY, G, pad_batch,
        "fill up a batch that micro_batch x dp x ep does not divide with empty sequences, which count in nothing; "
        "auto: where machines of launch.nodes may be missing, and sums are not exact",
        NAMED("auto|always|never"), .words = "true=always|false=never"),
    KEY("shuffle", BOOL, "true", ANY, G, shuffle, "false reads in order"),
    KEY("shuffle_buffer", INT, "0", FROM(0), G, shuffle_buffer,
        "so many are shuffled at a time, in runs of 64 neighbours, at least one, for files that are slow to read here "
        "and there; 0: all of an epoch",
        .unit = "sequences", .needs = "shuffle=true"),
    KEY("read_ahead", INT, "2", WITHIN(1, 4096), 0, read_ahead, "so many micro-batches are read before they are needed",
        .unit = "micro-batches"),
    KEY("on_error", ENUM, "stop", ANY, G, on_error,
        "of a file of train that cannot be opened, or read to its end: stop, or skip, which trains on the others",
        NAMED("stop|skip")),
    KEY("documents", ENUM, "continue", ANY, G, documents,
        "continue: sequences run on across documents; mask: attention and positions keep to a document; pack: whole "
        "documents are packed into sequences, with mask",
        NAMED("continue|mask|pack"), .words = "true=?say mask or pack: docs/data.md|false=continue"),
    KEY("check_tokens", INT, "134217728", FROM(0), 0, check_tokens,
        "so many are held against the vocabulary before the start; the others as they are read", .unit = "tokens"),
    KEY("tokenizer", STRING, NULL, ANY, G | P, data_tokenizer,
        "train and val are text, which this tokenizer.json, tokenizer.model or *.tiktoken makes tokens of; that of "
        "model.from if left out"),
    KEY("field", STRING, "text", ANY, G, data_field, "the text of a line of JSON lines"),
    KEY("chat_template", STRING, NULL, ANY, G, data_chat_template,
        "the lines are conversations or prompts with completions, rendered by this template: chatml, llama3, mistral, "
        "plain"),
    KEY("append_eod", ENUM, "auto", ANY, G, data_append_eod,
        "end each document by the tokenizer's end-of-document token; auto: where it has one", NAMED("auto|true|false")),
    KEY("cache", STRING, "runs/tokens", ANY, P, data_cache, "folder of the tokens of text"),
};

static const struct hd_option eval_keys[] = {
    KEY("every", INT, "0", FROM(0), G, eval_every, "evaluate after every so many; 0: never", .unit = "steps",
        .aliases = "eval_steps|eval_interval"),
    KEY("batches", INT, "10", WITHIN(1, 1e9), G, eval_batches, "global batches of one evaluation",
        .aliases = "eval_iters"),
};

#define CHOICE_FLOAT(name) "|" name
#define CHOICE_INT(name)
#define CHOICE_CODE(name)
#define CHOICE(constant, name, class, ...) CHOICE_##class(name)
#define CHOICE_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(CHOICE, constant, name)
#define DTYPES                                                           \
    NAMED(&(HD_DTYPES(CHOICE_ROW))[1]),                                  \
        .words = "float32=fp32|bfloat16=bf16|float16=fp16|float64=fp64|" \
                 "fp8=?products in 8 bits are an option of a device: device.fp8, where its plugin has it"
#define NARROW .needs = "precision.compute!=fp64" /* which has all of it in fp64 */
static const struct hd_option precision_keys[] = {
    KEY("compute", ENUM, "fp32", ANY, G, precision.compute, "activations and products; fp64: reference kernels",
        DTYPES),
    KEY("grad", ENUM, "fp32", ANY, G, precision.grad, "gradients as they are accumulated", DTYPES, NARROW),
    KEY("reduce", ENUM, "fp32", ANY, G, precision.reduce, "gradients as they travel", DTYPES, .needs = "data_ranks!=1"),
    KEY("master", ENUM, "fp32", ANY, G, precision.master, "parameters as the optimizer sees them", DTYPES, NARROW),
    KEY("optimizer", ENUM, "fp32", ANY, G, precision.optimizer, "optimizer state", DTYPES, NARROW),
    KEY("loss_scale", STRING, "auto", ANY, G, special, "auto (dynamic for fp16), none, dynamic, or a number"),
};

static const struct hd_option recompute_keys[] = {
    KEY("recompute", STRING, "none", ANY, G, special, "none, selective, full, or {every: N} blocks"),
};

static const struct hd_option checkpoint_keys[] = {
    KEY("dir", STRING, NULL, ANY, P, checkpoint_dir,
        "folder of the checkpoints, or s3://BUCKET/PREFIX (NAME://... is of plugin ckpt-NAME); runs/NAME/checkpoints "
        "if left out"),
    KEY("every", LIST, "0", ANY, G, special,
        "save after every so many steps (500), so long (30m), or both ([500, 30m]); 0: only at the end",
        .aliases = "save_steps|save_interval"),
    KEY("keep", LIST, "3", ANY, G, special,
        "how many of the newest stay (0: all), or {last: 3, every: 10000, best: 1}: also each of a multiple of so many "
        "steps, and those of the lowest val_loss",
        .aliases = "save_total_limit"),
    KEY("peers", LIST, "0", ANY, G, special,
        "{every: N}: after every N steps the state is copied into the memory of this machine and of another, from "
        "where a restart takes it; 0: never"),
    KEY("async", BOOL, "true", ANY, G, checkpoint_async, "write while training goes on"),
    KEY("resume", STRING, "auto", ANY, G | P, resume,
        "auto (the newest, if there is one), never, overwrite (never, and older ones move aside), or a path",
        .words = "true=auto|latest=auto|newest=auto|false=never|none=never|yes=?say auto|on=?say auto|no=?say never|"
                 "off=?say never"),
};

static const struct hd_option metrics_keys[] = {
    KEY("every", INT, "1", FROM(1), G, metrics_every, "write a line after every so many", .unit = "steps",
        .aliases = "logging_steps|log_interval"),
    KEY("jsonl", STRING, NULL, ANY, P, metrics_jsonl, "JSON lines; runs/NAME/metrics.jsonl if left out"),
    KEY("tensorboard", STRING, NULL, ANY, 0, special,
        "folder of event files; none if left out: the short form of {use: tensorboard, dir: FOLDER} in sinks"),
    KEY("sinks", LIST, NULL, ANY, 0, special,
        "who else gets the steps that are logged, plugins of kind metrics: [jsonl, {use: NAME, ...}]; jsonl, the file "
        "above, is written in any case"),
    KEY("profile", BOOL, "false", ANY, G, metrics_profile, "time every instruction of rank 0; a table at the end"),
    KEY("roofline", BOOL, "false", ANY, 0, metrics_roofline,
        "at the end, a step beside the least time that the machine's rates allow; profile and --machine have it too"),
    KEY("blocks", STRING, NULL, ANY, G | P, metrics_blocks,
        "FILE.csv: seconds of each block, measured; for strategies.3d.split"),
    KEY("trace", LIST, NULL, ANY, 0, special,
        "FILE.json, or {file: FILE.json, steps: A-B, ranks: all}: when every instruction of these steps ran on these "
        "ranks, for Perfetto and `heddle trace`; the third to fifth step of the run if left out; instead of steps, "
        "schedule: {skip_first: 0, wait: 99, warmup: 1, active: 3, repeat: 0}, a file a cycle"),
};

static const struct hd_option watch_keys[] = {
    KEY("loss_spike", FLOAT, "8", FROM(0), 0, watch.loss_spike,
        "an alarm where the loss is so many standard deviations above the median of the rows before; 0: none"),
    KEY("grad_norm", FLOAT, "10", FROM(0), 0, watch.grad_norm,
        "an alarm where the gradient norm is so many times the median of the rows before; 0: none"),
    KEY("throughput", FLOAT, "0", WITHIN(0, 1), 0, watch.throughput,
        "an alarm where the median tokens/s of 16 rows are such a part below those of the rows before; 0: none"),
    KEY("straggler", FLOAT, "0.1", WITHIN(0, 100), 0, watch.straggler,
        "an alarm where a rank computes such a part longer than the median of the others of its stage; 0: none", RANKS),
    KEY("data_wait", FLOAT, "0.1", WITHIN(0, 1), 0, watch.data_wait,
        "an alarm where a rank waits for data such a part of its time; 0: none"),
    KEY("exposed_comm", FLOAT, "0.2", WITHIN(0, 1), 0, watch.exposed_comm,
        "an alarm where ranks wait for communication such a part of their time; 0: none", RANKS),
    KEY("utilisation", FLOAT, "0", WITHIN(0, 1), 0, watch.utilisation,
        "an alarm where ranks compute less than such a part of their time; 0: none"),
    KEY("memory", FLOAT, "0.05", FROM(0), 0, watch.memory,
        "an alarm where the memory of a rank grows all the time, by such a part in 128 rows; 0: none"),
    KEY("descriptors", FLOAT, "16", FROM(0), 0, watch.descriptors,
        "an alarm where the open descriptors of a rank grow all the time, by so many in 128 rows; 0: none"),
    KEY("replicas", STRING, "auto", ANY, 0, special,
        "{every: N}: after so many steps, and before a save, ranks that hold copies of parameters and states compare "
        "them, and a difference ends the job; auto: as often as costs under 0.5%, with a device in host memory; 0: "
        "never",
        RANKS),
    KEY("rerun", STRING, "auto", ANY, 0, special,
        "{every: N}: in every Nth step each rank runs one instruction twice, another each time, and a difference ends "
        "the job; auto: every 100 steps, with a device in host memory; 0: never"),
    KEY("command", STRING, NULL, ANY, 0, watch.command,
        "run by sh for each alarm on the machine of rank 0, with rule, step and words as $1, $2, $3"),
};

#define KEYS(name) name##_keys, HD__COUNT(name##_keys)
const struct hd__job_core_section hd__job_core_sections[] = {
    {"job", KEYS(job), 0, NULL},
    {"launch", KEYS(launch), 0, NULL},
    {"plugins", KEYS(plugins), 0, NULL},
    {"device", KEYS(device), HD_KIND_DEVICE, "cpu"},
    {"liveness", KEYS(liveness), 0, NULL}, /* before comm: comm.dead_after takes its place */
    {"comm", KEYS(comm), HD_KIND_COMM, "shm"},
    {"mesh", KEYS(mesh), 0, NULL},
    {"strategies", NULL, 0, HD_KIND_STRATEGY, NULL},
    {"optimizer", NULL, 0, HD_KIND_OPTIMIZER, NULL},
    {"schedule", KEYS(schedule), 0, NULL},
    {"model", NULL, 0, HD_KIND_MODEL, NULL},
    {"data", KEYS(data), HD_KIND_DATA, "tokens"},
    {"eval", KEYS(eval), 0, NULL},
    {"precision", KEYS(precision), 0, NULL},
    {"recompute", KEYS(recompute), 0, NULL},
    {"checkpoint", KEYS(checkpoint), HD_KIND_CKPT, "posix"},
    {"metrics", KEYS(metrics), 0, NULL},
    {"watch", KEYS(watch), 0, NULL},
};
const size_t hd__job_core_section_count = HD__COUNT(hd__job_core_sections);

const char *hd__job_table(size_t i, struct hd__options *table)
{
    if (i >= HD__COUNT(hd__job_core_sections))
        return NULL;
    const struct hd__job_core_section *s = &hd__job_core_sections[i];
    *table = (struct hd__options){s->options, s->count, sizeof(struct hd_option)};
    return s->name;
}

const char *hd__job_key_place(const char *name, char place[HD__KEY_PLACE])
{
    struct hd__options table;
    const char *section;
    int n = 0;
    for (size_t s = 0; (section = hd__job_table(s, &table)); s++) {
        int64_t at = hd__option_find(&table, name);
        if (!strcmp(section, name) && snprintf(place, HD__KEY_PLACE, "section %s", name))
            return place;
        if (at >= 0 && !n++)
            snprintf(place, HD__KEY_PLACE, "%s.%s", section, hd__option_at(&table, (size_t)at).name);
    }
    return n == 1 ? place : NULL;
}

struct hd__options hd__job_core_table(const char *section)
{
    struct hd__options table = {0};
    const char *name;
    for (size_t i = 0; (name = hd__job_table(i, &table)); i++)
        if (!strcmp(name, section))
            return table;
    return (struct hd__options){0};
}
