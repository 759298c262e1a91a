/* heddle ckpt: looks at a job's checkpoints. */
#include <glob.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cli/ckpt_store.h"
#include "cli/job.h"
#include "cli/text.h"
#include "core/base/dtype.h"
#include "core/base/file.h"
#include "service/checkpoint/checkpoint.h"
#include "service/train/checkpointer/checkpointer.h"
#include "service/train/export.h"

struct ckpt_request {
    const char *verb, *name, *to, *weights, *dtype;
    int json;
    char newest[32];
    struct hd__cli_job loaded;
    struct hd__ckpt_store store;
    const char *dir;             /* of the store */
    struct hd__cli_store folder; /* where that was named, and no job */
};

static int open_store(struct ckpt_request *r, struct hd_error *err)
{
    const struct hd__chosen *chosen = &r->loaded.compiled->checkpoint_choice;
    if (!chosen->component)
        return hd__job_fail(r->loaded.job, "checkpoint", err,
                            "the job has no checkpoint section, so it has no checkpoints");
    r->store = (struct hd__ckpt_store){.ops = &chosen->component->ops.ckpt};
    r->dir = r->loaded.job->checkpoint_dir;
    return r->store.ops->open(hd__exec_host_table(), chosen->settings, r->loaded.job->checkpoint_dir, &r->store.ckpt,
                              err);
}

static int32_t open_checkpoint(struct ckpt_request *r, struct hd__ckpt **ckpt, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!r->name) {
        rc = hd__ckpt_latest(&r->store, r->newest, err);
        r->name = r->newest;
        if (rc == HD_E_NOTFOUND)
            return hd_fail(err, rc, "no checkpoint in %s", r->dir);
    }
    rc = rc ? rc : hd__ckpt_open(&r->store, r->name, ckpt, err);
    if (rc == HD_E_NOTFOUND)
        hd_fail(err, rc, "%s has no checkpoint %s: `heddle ckpt ls` lists them", r->dir, r->name);
    return rc;
}

static json_t *list_row(const struct hd__ckpt *ckpt, const char *name)
{
    static const char *const keys[] = {"time", "val_loss", "mesh", "emergency"};
    json_t *row = json_pack("{s:s,s:I,s:I,s:s}", "name", name, "step", (json_int_t)hd__ckpt_step(ckpt), "bytes",
                            (json_int_t)hd__ckpt_total_bytes(ckpt), "run", hd__ckpt_run_id(ckpt));
    for (size_t i = 0; i < HD__COUNT(keys); i++)
        if (json_object_get(hd__ckpt_state(ckpt), keys[i]))
            json_object_set(row, keys[i], json_object_get(hd__ckpt_state(ckpt), keys[i]));
    return row;
}

/* A folder of runs is not one of checkpoints. */
static int32_t no_checkpoints(const char *folder, struct hd_error *err)
{
    char *runs = hd__format("%s/*/checkpoints/step-*", folder);
    glob_t found = {0};
    int32_t rc = HD_OK;
    const char *one = !glob(runs, 0, NULL, &found) && found.gl_pathc ? found.gl_pathv[0] : "",
               *end = strstr(one, "/checkpoints/step-");
    if (end)
        rc = hd_fail(err, HD_E_NOTFOUND, "%s is a folder of runs: name one of them, as %.*s", folder, (int)(end - one),
                     one);
    else
        printf("no checkpoints in %s\n", folder);
    globfree(&found);
    free(runs);
    return rc;
}

static int32_t list(struct ckpt_request *r, struct hd_error *err)
{
    uint64_t *steps = NULL;
    uint32_t n = 0, torn = 0;
    json_t *rows = json_array();
    char why[HD__TORN_REASON];
    int32_t rc = hd__ckpt_list_steps(&r->store, &steps, &n, &torn, err), damaged = HD_OK;
    if (!rc && torn) { /* or one that a running job removed just then */
        free(steps);
        rc = hd__ckpt_list_steps(&r->store, &steps, &n, &torn, err);
    }
    for (uint32_t i = n; i < n + torn && !rc; i++)
        fprintf(stderr, "step-%08llu has no index.json that can be read%s, so it is no checkpoint\n",
                (unsigned long long)steps[i], hd__ckpt_torn_reason(&r->store, steps[i], why));
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct hd__ckpt *ckpt;
        char name[32], bytes[32];
        hd__ckpt_step_name(steps[i], name);
        rc = hd__ckpt_open(&r->store, name, &ckpt, err);
        if (rc == HD_E_CORRUPT || rc == HD_E_INVALID) { /* the others may be what is looked for */
            hd__speaker_print(err->message);
            damaged = damaged == HD_E_CORRUPT ? damaged : rc;
            rc = HD_OK;
            continue;
        }
        if (rc == HD_E_NOTFOUND) { /* a running job has removed it */
            rc = HD_OK;
            continue;
        }
        if (rc)
            break;
        hd__bytes_text(hd__ckpt_total_bytes(ckpt), bytes);
        struct hd__text about = {0};
        hd__cli_store_describe(hd__ckpt_state(ckpt), &about);
        if (r->json)
            json_array_append_new(rows, list_row(ckpt, name));
        else
            printf("%s  step %llu  %s%s%s%s\n", name, (unsigned long long)steps[i], bytes, about.at ? about.at : "",
                   *hd__ckpt_run_id(ckpt) ? "  run " : "", hd__ckpt_run_id(ckpt));
        hd__text_free(&about);
        hd__ckpt_close(ckpt);
    }
    if (!rc && r->json)
        json_dumpf(rows, stdout, JSON_INDENT(1)), putchar('\n');
    else if (!rc && !n)
        rc = no_checkpoints(r->dir, err);
    json_decref(rows);
    free(steps);
    return !rc && damaged ? hd_fail(err, damaged, "what cannot be read is not listed") : rc;
}

static int32_t show(struct ckpt_request *r, struct hd_error *err)
{
    struct hd__ckpt *ckpt;
    uint32_t n;
    char bytes[32];
    struct hd__text text = {0};
    int32_t rc = open_checkpoint(r, &ckpt, err);
    if (rc)
        return rc;
    const struct hd__ckpt_tensor *tensors = hd__ckpt_tensors(ckpt, &n);
    if (r->json) {
        json_dumpf(hd__ckpt_state(ckpt), stdout, JSON_INDENT(1));
    } else {
        printf("%s: step %llu, %u tensors, %s\n", r->name, (unsigned long long)hd__ckpt_step(ckpt), n,
               hd__bytes_text(hd__ckpt_total_bytes(ckpt), bytes));
        for (uint32_t i = 0; i < n; i++) {
            hd__text_add(&text, "  %-16s %-5s", tensors[i].group, hd_dtype_name(tensors[i].dtype));
            for (uint32_t d = 0; d < tensors[i].ndim; d++)
                hd__text_add(&text, "%s%lld", d ? "x" : " [", (long long)tensors[i].shape[d]);
            hd__text_add(&text, "%s %s\n", tensors[i].ndim ? "]" : "", tensors[i].name);
        }
        hd__text_print(&text, stdout);
    }
    hd__ckpt_close(ckpt);
    return HD_OK;
}

static int32_t verify(struct ckpt_request *r, struct hd_error *err)
{
    struct hd__ckpt *ckpt;
    int32_t rc = open_checkpoint(r, &ckpt, err);
    if (rc)
        return rc;
    rc = hd__ckpt_verify(ckpt, err);
    if (!rc)
        printf("%s: every block matches its checksum, and the index its files\n", r->name);
    hd__ckpt_close(ckpt);
    return rc;
}

static uint32_t parse_dtype(const char *name)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++)
        if (hd__is_float(d) && d != HD_F64 && !strcmp(name, hd_dtype_name(d)))
            return d;
    return 0;
}

/* The tokenizer that the job trains with, where there is one; an export does without, but not with one whose ids have
 * no rows. */
static int32_t open_text(const struct hd__cli_job *loaded, struct hd__cli_text *text, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    const struct hd__cli_text_flags flags = {
        .chat = hd__train_tokenizer(loaded->compiled, NULL).name ? hd__train_chat_template(loaded->compiled) : NULL};
    int32_t rc = hd__cli_text_open(loaded, &flags, text, &why);
    if (rc && loaded->job->data_tokenizer && text->tokenizer.info.vocab > text->vocab)
        return hd__job_fail(loaded->job, "data.tokenizer", err,
                            "data.tokenizer: %s has %lld ids, and the model's vocabulary is %lld: name the tokenizer "
                            "that it was trained with, or leave it out",
                            text->tokenizer.path, (long long)text->tokenizer.info.vocab, (long long)text->vocab);
    if (rc)
        hd__log(HD_LOG_WARN, NULL, "no generation_config.json is made of the tokenizer: %s", why.message);
    return HD_OK;
}

/* A tokenizer that the weights do not know makes a wrong model of them. */
static int32_t check_tokenizer(const struct ckpt_request *r, struct hd__token_maker trained, int64_t step,
                               struct hd_error *err)
{
    const struct hd__compiled *c = r->loaded.compiled;
    struct hd__token_maker mine = hd__train_tokenizer(c, NULL);
    if (!hd__token_makers_differ(trained, mine))
        return HD_OK;
    const char *key = c->job->data_tokenizer ? "data.tokenizer" : "model.from";
    if (hd__same_path(mine.name, trained.name))
        return hd__job_fail(c->job, key, err,
                            "%s has changed since step %lld was trained on its tokens, and the export would have it: "
                            "restore it",
                            mine.name, (long long)step);
    return hd__job_fail(c->job, key, err,
                        "step %lld was trained on tokens of %s, and the export would have another tokenizer, %s: say "
                        "data.tokenizer: %s",
                        (long long)step, trained.name, mine.name, trained.name);
}

static int32_t export(struct ckpt_request *r, struct hd_error *err)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    struct hd__train_export_config config = {
        .folder = r->to, .dtype = r->dtype ? parse_dtype(r->dtype) : 0, .sources = {r->loaded.job->data_tokenizer}};
    struct hd__train_session session;
    struct hd__train_checkpointer *checkpointer = NULL;
    struct hd__train_progress at = {0};
    struct hd__text written = {0};
    struct hd__cli_text text;
    const char *from = r->loaded.compiled->info.weights;
    if (hd__same_path(r->to, r->loaded.job->checkpoint_dir))
        return hd_fail(err, HD_E_INVALID, "--to %s: that is checkpoint.dir: name another folder", r->to);
    if (from && !hd__token_makers_differ(hd__train_tokenizer(r->loaded.compiled, from),
                                         hd__train_tokenizer(r->loaded.compiled, NULL)))
        config.sources[1] = from;
    int32_t rc = open_text(&r->loaded, &text, err);
    config.ends = text.ends.at;
    config.n_ends = text.ends.count;
    config.stop = text.chat ? hd__chat_stop(&text.tokenizer, text.chat) : -1;
    config.turn = text.chat ? hd__chat_open(text.chat) : NULL;
    rc = rc ? rc : hd__train_export_check(&config, err);
    if (rc) {
        hd__cli_text_close(&text);
        return rc;
    }
    rc = hd__train_session_open(&session, r->loaded.compiled, &alone, err);
    session.weights_for = HD__DIFF_EXPORT;
    if (!rc)
        rc = hd__train_checkpointer_open(&session, NULL, &checkpointer, err);
    if (!rc)
        rc = hd__train_checkpointer_load(checkpointer, r->name ? r->name : "auto", r->weights ? r->weights : "model",
                                         &at, err);
    if (!rc && !at.step)
        rc = hd_fail(err, HD_E_NOTFOUND, "no checkpoint in %s%s", r->loaded.job->checkpoint_dir,
                     hd__train_checkpointer_find_near(r->loaded.job));
    if (!rc)
        rc = check_tokenizer(r, hd__train_checkpointer_loaded(checkpointer)->tokens, at.step, err);
    config.positions = hd__train_checkpointer_loaded(checkpointer)->positions;
    if (!rc)
        rc = hd__train_export(&session, &config, &written, err);
    if (!rc) {
        struct hd__text line = {0};
        hd__text_add(&line, "step %lld written to %s: %s\n", (long long)at.step, r->to, written.at);
        hd__text_print(&line, stdout);
    }
    hd__text_free(&written);
    hd__cli_text_close(&text);
    hd__train_checkpointer_close(checkpointer);
    hd__train_session_close(&session, 0);
    return rc;
}

static int32_t rm(struct ckpt_request *r, struct hd_error *err)
{
    return hd__cli_store_remove(&r->store, r->dir, r->name, err);
}

static int32_t prune(struct ckpt_request *r, struct hd_error *err)
{
    return hd__cli_store_prune(&r->store, r->loaded.job, err);
}

static const struct {
    const char *verb;
    int32_t (*run)(struct ckpt_request *r, struct hd_error *err);
    int takes_folder;
} verbs[] = {{"ls", list, 1},       {"show", show, 1}, {"verify", verify, 1},
             {"export", export, 0}, {"rm", rm, 1},     {"prune", prune, 0}};
#define VERBS "ls, show, verify, export, diff, rm or prune"

static int run_verb(struct ckpt_request *r)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = r->folder.store.ckpt ? HD_OK : open_store(r, &err);
    for (size_t i = 0; i < HD__COUNT(verbs) && !rc; i++)
        if (!strcmp(verbs[i].verb, r->verb))
            rc = verbs[i].run(r, &err);
    if (r->store.ckpt && !r->folder.store.ckpt)
        r->store.ops->close(r->store.ckpt);
    return rc ? hd__cli_print_error(&err, rc == HD_E_CORRUPT || rc == HD_E_IO ? HD__EXIT_FAILED : HD__EXIT_REFUSED)
              : HD__EXIT_DONE;
}

static int run_diff(int argc, char **argv)
{
    struct hd_error err = HD_ERROR_INIT;
    int differ = 0;
    for (int i = 0; i < argc; i++)
        if (argv[i][0] == '-')
            return hd__cli_usage_error(&hd__command_ckpt, "%s: diff has no options", argv[i]);
    if (argc != 2)
        return hd__cli_usage_error(&hd__command_ckpt,
                                   "diff wants two checkpoints, as their folders: "
                                   "runs/a/checkpoints/step-00000100 runs/b/checkpoints/step-00000100");
    int32_t rc = hd__cli_store_diff(argv[0], argv[1], &differ, &err);
    if (rc)
        return hd__cli_print_error(&err, rc == HD_E_CORRUPT || rc == HD_E_IO ? HD__EXIT_FAILED : HD__EXIT_REFUSED);
    return differ ? HD__EXIT_FAILED : HD__EXIT_DONE;
}

/* A folder of checkpoints in the place of a job. */
static int open_folder(struct ckpt_request *r, const struct hd__cli_job_arguments *arguments)
{
    struct hd_error err = HD_ERROR_INIT;
    int takes = 0;
    for (size_t i = 0; i < HD__COUNT(verbs); i++)
        takes |= !strcmp(verbs[i].verb, r->verb) && verbs[i].takes_folder;
    if (!takes || arguments->n_overrides)
        return hd__cli_usage_error(&hd__command_ckpt, "%s is a folder, and %s: name its job", arguments->file,
                                   takes ? "key=value is of a job" : "this works on a job");
    if (hd__cli_store_open(arguments->file, &r->folder, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    r->store = r->folder.store;
    r->dir = r->folder.dir;
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct stat st;
    struct ckpt_request r = {0};
    const struct hd__cli_flag flags[] = {{"--checkpoint", &r.name, NULL},
                                         {"--to", &r.to, NULL},
                                         {"--weights", &r.weights, NULL},
                                         {"--dtype", &r.dtype, NULL},
                                         {"--json", NULL, &r.json}};
    const char *names[HD__COUNT(verbs)], *nearest;
    char name[HD__STORE_NAME];
    struct hd__cli_job_arguments arguments;
    int code, known = 0;
    if (argc < 2)
        return hd__cli_usage_error(&hd__command_ckpt, "what to do: " VERBS "?");
    r.verb = argv[1];
    if (!strcmp(r.verb, "diff"))
        return run_diff(argc - 2, argv + 2);
    for (size_t i = 0; i < HD__COUNT(verbs); i++) {
        names[i] = verbs[i].verb;
        known |= !strcmp(r.verb, names[i]);
    }
    nearest = hd__nearest(r.verb, names, HD__COUNT(names));
    if (!known)
        return hd__cli_usage_error(&hd__command_ckpt, "there is no 'ckpt %s'%s%s%s", r.verb,
                                   nearest ? "; did you mean '" : "", nearest ? nearest : "",
                                   nearest ? "'?" : ": " VERBS);
    code = hd__cli_job_arguments(&hd__command_ckpt, argc - 1, argv + 1, flags, HD__COUNT(flags), &arguments);
    if (!code && !strcmp(r.verb, "export") && !r.to)
        code = hd__cli_usage_error(&hd__command_ckpt, "export needs --to FOLDER");
    else if (!code && strcmp(r.verb, "export") && (r.to || r.weights || r.dtype))
        code = hd__cli_usage_error(&hd__command_ckpt, "%s is for export",
                                   r.to        ? "--to"
                                   : r.weights ? "--weights"
                                               : "--dtype");
    else if (!code && r.dtype && !parse_dtype(r.dtype))
        code = hd__cli_usage_error(&hd__command_ckpt, "--dtype %s: wanted bf16, fp16 or fp32", r.dtype);
    else if (!code && r.json && strcmp(r.verb, "ls") && strcmp(r.verb, "show"))
        code = hd__cli_usage_error(&hd__command_ckpt, "--json is for ls and show");
    else if (!code && r.name && !strcmp(r.verb, "ls"))
        code = hd__cli_usage_error(&hd__command_ckpt, "ls lists all: no --checkpoint");
    else if (!code && r.name && !strcmp(r.verb, "prune"))
        code = hd__cli_usage_error(&hd__command_ckpt, "prune keeps what checkpoint.keep says: no --checkpoint");
    else if (!code && !r.name && !strcmp(r.verb, "rm"))
        code = hd__cli_usage_error(&hd__command_ckpt, "rm needs --checkpoint NAME");
    const char *store = code ? NULL : hd__store_of(arguments.file, name);
    if (!code)
        code = (store && strcmp(store, "posix") != 0) || (!stat(arguments.file, &st) && S_ISDIR(st.st_mode))
                   ? open_folder(&r, &arguments)
                   : hd__cli_load_single_rank(&arguments, HD__COMPILE_EVALUATION, NULL, 0, &r.loaded);
    if (!code)
        code = run_verb(&r);
    hd__cli_store_close(&r.folder);
    hd__cli_unload_job(&r.loaded);
    return code;
}

const struct hd__command hd__command_ckpt = {
    .name = "ckpt",
    .usage =
        "ls|show|verify|export|rm|prune JOB|FOLDER [key=value ...] [--checkpoint NAME] [--to FOLDER] [--dtype DTYPE] "
        "[--weights NAME] [--json]",
    .summary = "look at checkpoints, export weights",
    .help =
        "Works on the checkpoints of a job (its checkpoint.dir); ls, show, verify and rm also on those of a folder\n"
        "or an s3://BUCKET/PREFIX.\n\n"
        "  ls        lists them: step, bytes, date, val_loss, mesh, run\n"
        "  show      the tensors of one; with --json its state (step, data position, job)\n"
        "  verify    reads every block of one and compares checksums\n"
        "  export    writes the weights as a folder that Hugging Face transformers loads, with the tokenizer's files\n"
        "            and generation_config.json: that of model.from's folder, or one with the tokenizer's end of text\n"
        "  diff A B  what differs between two checkpoints, each named by its folder; exit code 1 if tensors do\n"
        "  rm        removes the one that --checkpoint names\n"
        "  prune     removes those that the job's checkpoint.keep lets go\n\n"
        "  --checkpoint NAME    which one, instead of the newest\n"
        "  --to FOLDER          where export writes; it overwrites nothing\n"
        "  --dtype DTYPE        of the exported weights: bf16, fp16, fp32 (that of model.from, else fp32)\n"
        "  --weights NAME       export an average that a strategy keeps instead of the weights: ema\n"
        "  --json               for machines (ls, show)\n",
    .example = "  heddle ckpt export examples/kjv.yaml --to kjv-model\n",
    .run = run,
};
