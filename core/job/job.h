/* core/job: a job file, read, checked and typed.
 *
 *     hd__job_load      YAML -> tree with marks -> overrides -> core sections parsed through option tables
 *     hd__job_section_parse    once for each plugin section, by whoever knows the plugin's table
 *     hd__job_resolve   once the number of ranks is known: mesh, accumulation
 *     hd__job_print     the resolved job with the origin of every value; hd__job_json the same for machines
 *     hd__job_free
 *
 * The core's own sections are described by struct hd_option tables like those of plugins (core/job/keys.c).
 * What belongs to a plugin stays raw: struct hd__job_section keeps its `use:` name and its nodes. A failure is
 * HD_E_INVALID; its message begins with the place, "job.yaml:12:7: " or "command line: ", and hd_error.where
 * stays empty, so that printing the message prints everything. */
#ifndef HD_CORE_JOB_JOB_H
#define HD_CORE_JOB_JOB_H

#include <jansson.h>

#include "core/base/base.h"
#include "core/base/option.h"
#include "core/job/lr_schedule.h"
#include "heddle/plugin.h"

struct hd__tree_node; /* core/base/yaml_tree.h */
struct hd__job;

/* A part of the job that names a component: device, comm, each strategy, optimizer, model, data, checkpoint,
 * each hook, each transport of comm.axes. */
struct hd__job_section {
    const char *path;           /* as the command line addresses it: "optimizer", "strategies.zero", "comm.axes.dp" */
    const char *use;            /* the component's name */
    const char *origin;         /* of `use`: "job.yaml:12:7", "default", "command line" */
    uint32_t kind;              /* HD_KIND_... */
    uint32_t parsed;            /* hd__job_section_parse was called */
    const char *location;       /* where the section begins, for messages */
    struct hd__tree_node *node; /* the whole mapping; NULL where only a name was given */
    const char *alias;          /* the alias that the file uses; NULL: the component's own name */
    const char *preset;         /* struct hd_alias; NULL: none */
    struct hd__options table;   /* its component's; empty until it is parsed */
    const char *because;        /* of a strategy that the file does not name: "mesh.tp is 2"; else NULL */
};

/* One resolved value. The text is valid YAML (flow style) and reads back as the same value. */
struct hd__job_value {
    const char *path;                    /* "data.batch", "strategies.zero.stage" */
    const char *text;                    /* "32", "[0.9, 0.95]" */
    const char *origin;                  /* "default", "job.yaml:12:7", "command line" */
    const char *note;                    /* "auto": the text before it was resolved; or NULL */
    const struct hd__job_section *owner; /* the section that has the option; NULL: the core's */
    json_t *json;
    /* NULL unless the job says another value than the default: */
    const char *needs, *plain; /* struct hd_option's needs and default */
    const char *written;       /* its path by the name that the file has */
    uint32_t flags;            /* HD_OPTION_GLOBAL: ranks must agree; HD_OPTION_PATH */
    uint32_t reserved;
};

/* A message that begins with its place; the command line is line UINT32_MAX. */
struct hd__job_mistake {
    const char *text;
    const char *unknown;              /* a key that no section of the core's has, for those of plugins; or NULL */
    const struct hd__job_section *in; /* where it is; NULL: in a section of the core's */
    const char *others;               /* the plugins of that section's kind that have it; NULL: none */
    uint32_t line, column;
};

/* A file of tokens, or one part of a weighted mix. Weights are as written, not normalised; 1 where none is
 * given. */
struct hd__source {
    const char *path;
    double weight;
};

struct hd__sources {
    const struct hd__source *at;
    uint64_t count;
    uint32_t weighted; /* a mix by weight; 0: the files follow one another */
    uint32_t reserved;
};

/* Text of data.train or data.val, and where its tokens are. */
struct hd__tokenized {
    const char *path, *tokens;
    uint64_t hash; /* of the tokens */
};

/* A file of tokens whose .meta.json was looked for. */
struct hd__token_file {
    const char *path, *tokenizer, *chat; /* what made the tokens: its file, and the chat template; NULL: not known */
    const char *made_of, *stale;   /* service/text/lineage.h; an input that was tokenized again; NULL: not known */
    uint64_t path_hash, hash;      /* there may be thousands; of the tokenizer's file */
    int64_t vocab, documents, eod; /* its ids; the one appended to documents; -1: none, or not known */
};

/* A file of data.train that is skipped, by data.on_error or as in the checkpoint. */
struct hd__skipped_file {
    const char *path;
    uint64_t tokens; /* that it has in the numbering of sequences; 0: none, it was never open */
};

/* A set of data.val that has a name of its own. Its sources are among those of hd__job.val. */
struct hd__val_set {
    const char *name;
    struct hd__sources sources;
};
enum { HD__VAL_SETS = 16 }; /* at most */

enum { HD__DETERMINISTIC_NORMAL = 0, HD__DETERMINISTIC_EXACT = 1 };
enum { HD__ON_ERROR_STOP = 0, HD__ON_ERROR_SKIP };
enum { HD__SCALE_BATCH_NEVER = 0, HD__SCALE_BATCH_LINEAR, HD__SCALE_BATCH_SQRT };
enum { HD__PAD_BATCH_AUTO = 0, HD__PAD_BATCH_ALWAYS, HD__PAD_BATCH_NEVER };
enum { HD__DOCUMENTS_CONTINUE = 0, HD__DOCUMENTS_MASK, HD__DOCUMENTS_PACK };
enum { HD__SUMS_TREE = 0, HD__SUMS_ANY = 1 }; /* of sums over send and recv */
enum { HD__RECOMPUTE_NONE = 0, HD__RECOMPUTE_SELECTIVE, HD__RECOMPUTE_FULL, HD__RECOMPUTE_EVERY };
enum { HD__LOSS_SCALE_NONE = 0, HD__LOSS_SCALE_DYNAMIC, HD__LOSS_SCALE_STATIC };

struct hd__job {
    struct hd__arena arena; /* owner of everything that is pointed to from here */
    const char *file;       /* as given by the user */

    /* job: */
    const char *name;
    int64_t steps; /* 0 where `epochs` is given: until hd__job_count_steps */
    double epochs; /* 0: `steps` is given */
    int64_t seed;
    int32_t deterministic; /* HD__DETERMINISTIC_... */

    /* launch: */
    int64_t launch_ranks;          /* of a machine; 0: unset */
    const char *launch_nodes;      /* "2", "2:4" */
    const char *launch_rendezvous; /* NULL: none */
    const char *launch_machine;    /* NULL: the device's */
    int32_t nodes_min, nodes_max;  /* machines; 0 until hd__job_resolve reads launch_nodes */
    int64_t ranks_each;            /* of a machine; resolved */
    int32_t scale_batch;           /* HD__SCALE_BATCH_... */
    int64_t launch_restarts;       /* in a row without a newer checkpoint */
    double launch_pause;           /* seconds before the first of them */
    double launch_time_limit;      /* seconds; 0: none */
    double launch_margin;          /* seconds before it, or before Slurm's end, at which the job begins to save */
    const char *notice_file;       /* NULL: none */
    const char *notice_command;
    double notice_every; /* seconds between two looks */

    /* plugins: */
    struct hd_list plugin_path;

    /* device: the core's keys of that section */
    int64_t device_staging; /* bytes of a chunk */
    int32_t device_capture;

    /* sections of plugins. checkpoint is NULL when nothing is to be saved; the others are never NULL */
    struct hd__job_section *device, *comm, *optimizer, *model, *data, *checkpoint;
    struct hd__job_section **strategies; /* in the job's order, never empty */
    uint64_t n_strategies;
    struct hd__job_section **hooks; /* comm.hooks: wrappers, the first is outermost */
    uint64_t n_hooks;
    struct hd__job_section *comm_axis[HD_AXIS_COUNT]; /* the transport of each axis; `comm` where comm.axes is silent */
    struct hd__job_section *comm_inside;              /* comm.inside; NULL: one transport for all */
    int32_t comm_levels[3];    /* HD__LEVELS_..., the outermost first, each inside the one before */
    uint32_t n_comm_levels;    /* 1 to 3 */
    int32_t comm_sums;         /* HD__SUMS_... */
    const char *comm_tune;     /* a file; NULL: the built-in rules */
    int32_t comm_progress;     /* 0: between instructions; 1: by a thread */
    double comm_timeout;       /* seconds; hd_world.timeout */
    double comm_dead_after;    /* seconds; hd_world.dead_after */
    double late_after;         /* seconds: a rank that others wait for longer is named in the log */
    int64_t flight_operations; /* operations that the flight recorder keeps */

    /* mesh: filled by hd__job_resolve; tq is 1 here: the compiler splits tp where kv heads are few */
    int64_t mesh[HD_AXIS_COUNT];
    int64_t mesh_asked[HD_AXIS_COUNT]; /* as in the file; 0 = auto */
    int64_t ranks;                     /* product of mesh */
    int32_t auto_mesh;       /* mesh: auto. Whoever can plan chooses, and opens the job again with the choice */
    int32_t auto_strategies; /* the same of strategies */

    struct hd__lr_schedule schedule; /* lr is the optimizer's: the code that opens the optimizer sets it */
    double lr_factor;                /* of its rates, for the machines that train: launch.scale_batch; resolved */

    /* data: */
    struct hd__sources train, val, test; /* val, test: count 0: none; val: all sets */
    const struct hd__val_set *val_sets;  /* [n_val_sets]; 0: data.val is one set without a name */
    uint64_t n_val_sets;
    double val_fraction; /* the last part of train, 0 to 1 */
    int64_t seq_len;
    int64_t batch;                    /* sequences of one step, over all ranks; resolved: launch.scale_batch */
    int64_t batch_of_all;             /* data.batch, where all machines train; resolved */
    int64_t micro_batch;              /* sequences of one micro-batch on one data coordinate; resolved */
    int64_t accumulation;             /* micro-batches a step = batch / (micro_batch dp ep), rounded up, or the most of
                                * micro_batches; resolved */
    int64_t micro_batch_asked;        /* 0: unset */
    HD__ARRAY(int32_t) micro_batches; /* of a step on each of mesh.dp; none: `accumulation` on all */
    int32_t pad_batch;                /* HD__PAD_BATCH_... */
    int32_t shuffle;
    int32_t documents; /* HD__DOCUMENTS_... */
    int64_t shuffle_buffer;
    int64_t check_tokens;
    const char *data_tokenizer; /* NULL: none, or model.from's */
    const char *data_field, *data_cache;
    const char *data_chat_template;               /* NULL: lines have a text */
    int32_t data_append_eod;                      /* 0: auto, 1: true, 2: false */
    HD__ARRAY(struct hd__tokenized) tokenized;    /* by service/train/corpus */
    HD__ARRAY(struct hd__token_file) token_files; /* by service/train/token_origin */
    int64_t read_ahead;                           /* micro-batches */
    int32_t on_error;                             /* HD__ON_ERROR_... */
    int32_t reserved_data;
    HD__ARRAY(struct hd__skipped_file) skipped; /* by service/train/shards */
    HD__ARRAY(struct hd__skipped_file)
    saved_files; /* of train, in the checkpoint that was loaded; those that are not there
                                                     * keep their places where keeps_files is set */
    int32_t keeps_files, reserved_files;

    /* eval: */
    int64_t eval_every; /* steps; 0: never */
    int64_t eval_batches;

    struct {
        uint32_t compute, grad, reduce, master, optimizer; /* HD_F32, ... */
        uint32_t loss_scaling;                             /* HD__LOSS_SCALE_... */
        double loss_scale;                                 /* STATIC: the factor; DYNAMIC: the first one; NONE: 1 */
    } precision;

    int32_t recompute;       /* HD__RECOMPUTE_... */
    int64_t recompute_every; /* for EVERY: keep the input of every Nth block */

    /* checkpoint: the core's keys of that section */
    const char *checkpoint_dir;
    int64_t checkpoint_every;      /* steps; 0: not by steps */
    double checkpoint_seconds;     /* 0: not by time; both 0: only at the end */
    int64_t checkpoint_peers;      /* steps between copies in memory; 0: none */
    int64_t checkpoint_keep;       /* the newest; 0: all */
    int64_t checkpoint_keep_every; /* steps: multiples stay; 0: none for that */
    int64_t checkpoint_keep_best;  /* those of the lowest val_loss */
    int32_t checkpoint_async;
    const char *resume; /* "auto", "never", "overwrite" or a path */

    /* metrics: */
    int64_t metrics_every;
    const char *metrics_jsonl;
    struct hd__job_section **sinks; /* metrics.tensorboard, which is a short form, and metrics.sinks */
    uint64_t n_sinks;
    int32_t metrics_profile, metrics_roofline;
    const char *metrics_blocks; /* NULL: none */
    struct {
        const char *file;    /* NULL: there is none */
        int64_t first, last; /* steps; 0: the third to fifth of the run */
        int64_t skip_first, wait, warmup, active,
            repeat; /* a schedule of cycles; active 0: none, repeat 0: to the end */
        int64_t *ranks;
        uint64_t n_ranks; /* 0: all */
        int32_t ends;     /* `heddle trace`: the run is for the trace, and ends with it */
        int32_t reserved;
    } trace;

    /* watch: limits of the rules of alarms, 0: none */
    struct {
        double loss_spike, grad_norm, throughput, straggler, data_wait, memory, descriptors, exposed_comm, utilisation;
        int64_t replicas_every; /* steps; 0: they are not compared; -1: auto */
        int64_t rerun_every;    /* the same of instructions that are run twice */
        const char *command;    /* NULL: none */
    } watch;

    /* for printing and for comparing between ranks */
    HD__ARRAY(struct hd__job_value) values;
    HD__ARRAY(struct hd__job_section *) sections; /* all of them */
    HD__ARRAY(struct hd__job_mistake) mistakes;   /* the first HD__MISTAKES of the file */
    uint64_t mistakes_left_out;
    const char *unknown; /* of the mistake that is noted next, and where it is */
    const struct hd__job_section *unknown_in;
    HD__ARRAY(const char *) unplaced; /* strategies.NAME.KEY=VALUE of the command line, of strategies not there yet */
    struct hd__tree_node *root;
    struct hd_list special; /* target of the tables' offsets for keys that have readers of their own */
};

/* Reads a file; `overrides` are "key.key=value" words of the command line, later ones win. Mistakes in keys and values
 * are all kept in the job, so that the plugins' tables can add theirs; a failure is a file that is no job at all. */
int32_t hd__job_open(const char *file, const char *const *overrides, size_t n, struct hd__job **job,
                     struct hd_error *err);
/* Refuses two names of one key among a user's words, of which the later would win without a word. */
int32_t hd__job_overrides_check(const char *const *words, size_t n, struct hd_error *err);
/* Notes a mistake and goes on. `first` is the code of those before: err keeps the first, whose code is returned. */
enum { HD__MISTAKES = 20 };
int32_t hd__job_mistake(struct hd__job *job, int32_t first, const struct hd_error *why, struct hd_error *err);
/* All of them, a line each, in the order of the file. */
void hd__job_mistakes_text(const struct hd__job *job, struct hd__text *out);
/* hd__job_open, where the first mistake is a failure. */
int32_t hd__job_load(const char *file, const char *const *overrides, size_t n, struct hd__job **job,
                     struct hd_error *err);
/* The same from memory; `file` is what messages call it. */
int32_t hd__job_parse(const char *file, const char *text, size_t bytes, const char *const *overrides, size_t n,
                      struct hd__job **job, struct hd_error *err);
void hd__job_free(struct hd__job *job); /* NULL is fine */

/* "20-24" or "20": steps as of metrics.trace. HD_E_INVALID: the text is neither. */
int32_t hd__job_steps_parse(const char *text, int64_t *first, int64_t *last);

/* Parses a plugin's section into `settings` (its settings_size bytes, zeroed by the caller) through its
 * table: defaults first, then the file and the command line. Strings and lists live as long as the job.
 * Unknown keys are refused with the nearest right one. */
int32_t hd__job_section_parse(struct hd__job *job, struct hd__job_section *section, const struct hd_option *options,
                              size_t n, size_t option_size, void *settings, struct hd_error *err);

/* Renames a section that named a component by an alias: from now on it has the component's own name, and the preset's
 * values are the defaults of its keys. */
void hd__job_section_rename(struct hd__job *job, struct hd__job_section *section, const char *use, const char *preset);
/* Adds a strategy that the file does not name in front of the others; `because` says why: "mesh.tp is 2", and messages
 * about it point to `place`. */
int32_t hd__job_strategy_add(struct hd__job *job, const char *use, const char *because, const char *place,
                             struct hd_error *err);
/* The name of a strategy that the command line sets and that is not (yet) in the job; NULL: none. */
const char *hd__job_unplaced(struct hd__job *job);
/* Refuses it. */
int32_t hd__job_unplaced_fail(struct hd__job *job, struct hd_error *err);
/* Resolves the mesh for a number of ranks, and values that depend on it. ranks 0: launch.ranks on each of nodes_max
 * machines, or the mesh's own product, or 1. Where there may be fewer machines, dp follows the number of ranks, and
 * micro-batches get no larger than on all of them: the batch stays, or shrinks (launch.scale_batch). May be called
 * again with another number. */
int32_t hd__job_resolve(struct hd__job *job, int64_t ranks, struct hd_error *err);
/* The learning rate of a step, 1 = the first update. Of a resolved job whose optimizer is open. */
double hd__job_lr(const struct hd__job *job, int64_t step);
/* Places of a step's micro-batches behind the batch, on all ranks together: data.pad_batch. Of a resolved job. */
int64_t hd__job_empty_sequences(const struct hd__job *job);

/* Steps of job.epochs, of `sequences` each, the last step whole; nothing where job.steps is given. */
int32_t hd__job_count_steps(struct hd__job *job, uint64_t sequences, struct hd_error *err);

const struct hd__job_value *hd__job_value_get(const struct hd__job *job,
                                              const char *path); /* NULL: not set, and it has no default */

/* The position at which a path like "mesh.tp", "optimizer.use" or "strategies.zero.stage" was written, "job.yaml:12:7"
 * or "command line"; if it was not, that of the nearest enclosing node. The job owns the text. */
const char *hd__job_where(struct hd__job *job, const char *path);
/* The key that a text begins with, of any section: "model.heads" of "model.heads (3) is ...". NULL: none. */
const char *hd__job_key_of(struct hd__job *job, const char *text);
/* Fails with the place of `path` in front of the message. */
int32_t hd__job_fail(struct hd__job *job, const char *path, struct hd_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts the place of `path` in front of the message that is in `err`. Its code stays and is returned. */
int32_t hd__job_locate_error(struct hd__job *job, const char *path, struct hd_error *err);

/* The run's folder: that of its metrics. */
const char *hd__job_folder(struct hd__job *job);

/* The resolved job as YAML, each value with its origin as a comment. */
void hd__job_print(const struct hd__job *job, struct hd__text *out);
/* The same as JSON, without origins. The caller owns the reference. */
json_t *hd__job_json(const struct hd__job *job);

/* The values that ranks must agree on, by path: as printed; of file paths only the names, without folders. The caller
 * owns the reference. */
json_t *hd__job_global_json(const struct hd__job *job);

/* Section i of the core and its table, for docs and tests: NULL after the last. */
const char *hd__job_table(size_t i, struct hd__options *table);
/* The place at which the core has this name: "job.seed", "section mesh"; NULL: nowhere, or in several sections. */
enum { HD__KEY_PLACE = 80 };
const char *hd__job_key_place(const char *name, char place[HD__KEY_PLACE]);

#endif
