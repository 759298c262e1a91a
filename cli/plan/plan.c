/* heddle plan: what a job would need and do on a kind of machine. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/plan/search.h"
#include "cli/plan/page.h"
#include "cli/text.h"
#include "cli/warnings/warnings.h"
#include "core/base/file.h"

struct plan_request {
    const char *machine, *ranks, *tokens, *assumed, *sweep, *compare, *scaling, *html;
    int json, search, fewest;
    struct hd__assume assume;
    const char *device; /* that programs are compiled for */
    struct hd__plan_page page;
    uint32_t rows;    /* printed, below one head */
    int ranks_differ; /* they may, between rows */
};

/* Prints it where --json asks for that, writes the page of it, and gives it up. */
static int finish(const struct plan_request *r, json_t *object)
{
    struct hd_error err = HD_ERROR_INIT;
    int code = HD__EXIT_DONE;
    if (r->json) {
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
    }
    if (r->html && hd__plan_write_page(r->html, &r->page, object, &err))
        code = hd__cli_print_error(&err, HD__EXIT_FAILED);
    json_decref(object);
    return code;
}

/* 1T, 300B, 1.5e12: tokens, or a number of ranks. */
static int parse_count(const char *flag, const char *text, double *out)
{
    static const char units[] = "KMBT";
    char *end;
    *out = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        *out *= 1000;
    double whole = round(*out); /* 4.06B is not exact in binary */
    int is_whole = unit ? fabs(*out - whole) < 1e-15 * whole : *out == whole;
    *out = whole;
    if (end != text && !end[unit != NULL] && is_whole && whole >= 1 && whole <= 1e18)
        return HD__EXIT_DONE;
    return hd__cli_usage_error(&hd__command_plan, "%s %s: wanted a whole number of at least 1, as 64, 300B or 1.5T",
                               flag, text);
}

/* The rest of a training, of which a plan has the steps alone. An evaluation has the forward pass of its batches, about
 * a third of a step's work. */
static void warn_of_rest(struct hd__job *job, const struct hd__plan *plan)
{
    double batches = (double)job->eval_batches * (double)HD__MAX(1, job->n_val_sets);
    const struct {
        const char *key, *of;
        double share;
    } rows[] = {
        {"eval.every", "evaluations", job->eval_every ? batches / 3 / (double)job->eval_every : 0},
        {"checkpoint.every", "saves that training waits for",
         job->checkpoint_every && !job->checkpoint_async
             ? hd__plan_save_seconds(plan) / plan->seconds / (double)job->checkpoint_every
             : 0},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (rows[i].share > 0.1)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %s: the plan is of steps alone: %s take about %.0f %% of their time in addition",
                    hd__job_where(job, rows[i].key), rows[i].key, rows[i].of, 100 * rows[i].share);
}

static int print_plan(struct plan_request *r, const struct hd__compiled *c, const struct hd__machine *m, double tokens)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plan plan;
    if (hd__plan_make(c, m, &r->assume, &plan, &err))
        return hd__cli_print_error(&err, err.code == HD_E_INVALID ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    if (tokens > 0 && tokens < (double)plan.tokens)
        return hd__cli_usage_error(&hd__command_plan,
                                   "--tokens %s is less than a step, which has %lld: a billion is 1B or 1e9", r->tokens,
                                   (long long)plan.tokens);
    if (!(tokens > 0))
        tokens = (double)plan.tokens * (double)c->job->steps;
    if (!(tokens > 0))
        fprintf(stderr, "%s: job.epochs: a plan reads no data: give --tokens N or job.steps for the whole training\n",
                hd__job_where(c->job, "job.epochs"));
    warn_of_rest(c->job, &plan);
    struct hd__text text = {0}, job = {0};
    if (!r->json) {
        hd__plan_text(&plan, m, tokens, &text);
        hd__text_print(&text, stdout);
    }
    hd__job_print(c->job, &job);
    r->page.name = c->job->name;
    r->page.ranks = plan.ranks;
    r->page.job = job.at;
    int code = finish(r, hd__plan_json(&plan, m, tokens));
    hd__text_free(&job);
    return code;
}

/* The machine's device, or cpu where its plugin was not built: programs then differ in what is fused, and the memory by
 * some activations. */
static const char *find_device(const struct hd__machine *m)
{
    struct hd__plugins *plugins = hd__plugins_create(hd__exec_host_table());
    const struct hd__component *device;
    struct hd_error err = HD_ERROR_INIT;
    const char *name = m->device;
    if (!hd__plugins_add_default_folders(plugins, &err) &&
        hd__plugin_find(plugins, HD_KIND_DEVICE, m->device, &device, &err)) {
        fprintf(stderr, "%s; planned with the programs of device cpu, which differ in some activations\n", err.message);
        name = "cpu";
    }
    hd__plugins_destroy(plugins);
    return name;
}

/* The job with the machine's device and, where --ranks says so, as many ranks. */
static int load(struct plan_request *r, const struct hd__cli_job_arguments *arguments, int64_t ranks,
                struct hd__cli_job *loaded)
{
    /* Gradients of weights stay where the schedule has them if stages were measured. */
    uint32_t flags = r->assume.stage_f > 0 ? HD__COMPILE_KEEP_WEIGHT_ORDER : 0;
    struct hd_error err = HD_ERROR_INIT;
    struct hd__cli_job_arguments all = *arguments;
    const char **words = hd__alloc((arguments->n_overrides + 2) * sizeof *words);
    char *device = hd__format("device.use=%s", r->device), *launch = hd__format("launch.ranks=%lld", (long long)ranks);
    memcpy(words, arguments->overrides, arguments->n_overrides * sizeof *words);
    words[all.n_overrides++] = device;
    if (ranks)
        words[all.n_overrides++] = launch;
    all.overrides = words;
    int code = hd__cli_resolve_job(&all, ranks, loaded);
    if (!code && flags && hd__exec_compile_with(loaded->job, loaded->plugins, flags, &loaded->compiled, &err))
        code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    else if (!code && !flags)
        code = hd__cli_compile_job(loaded);
    free(launch);
    free(device);
    free(words);
    return code;
}

/* The mesh is what is searched: the job's own need not fit the ranks. */
static int32_t free_mesh(void *user, struct hd__job *job, struct hd_error *err)
{
    (void)err;
    if (!*(int64_t *)user)
        return HD_OK;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        job->mesh_asked[a] = a != HD_AXIS_DP_SHARD;
    job->micro_batch_asked = 0;
    job->pad_batch = HD__PAD_BATCH_ALWAYS;
    return HD_OK;
}

static int print_fewest(const struct plan_request *r, const struct hd__search *found, int64_t ranks,
                        const struct hd_error *below)
{
    const struct hd__search_plan *best = &found->best[0];
    const char *binds = *below->message ? below->message : "one rank is the least";
    char step[32], bytes[32];
    if (!r->json)
        printf("%7s %9s %8s %11s  %s\n%7lld %9s %6.1f %% %11s  %s\non one less: %s\n\n# its job file\n%s", "ranks",
               "step", "MFU", "memory", "words", (long long)ranks, hd__seconds_text(best->plan.seconds, step),
               100 * best->plan.model_flops / best->plan.seconds / best->plan.peak_flops,
               hd__bytes_text((uint64_t)best->plan.peak, bytes), best->words, binds, best->job);
    return finish(r, json_pack("{s:{s:I, s:s, s:s, s:f, s:I, s:s}}", "fewest", "ranks", (json_int_t)ranks, "job",
                               best->job, "words", best->words, "step_s", best->plan.seconds, "memory",
                               (json_int_t)best->plan.peak, "binds", binds));
}

static int print_found(const struct plan_request *r, const struct hd__search *found)
{
    struct hd__text text = {0};
    if (!r->json) {
        hd__search_text(found, &text);
        hd__text_print(&text, stdout);
    }
    return finish(r, hd__search_json(found));
}

/* Values of the command line that a search does not keep. */
static void warn_of_chosen(const struct hd__job *job, const char *who)
{
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        if (!strcmp(v->origin, "command line") && !v->note &&
            (!strncmp(v->path, "mesh.", 5) || !strcmp(v->path, "data.micro_batch") || !strcmp(v->path, "recompute")))
            hd__log(HD_LOG_WARN, NULL, "command line: %s has no effect, because %s chooses it", v->path, who);
    }
}

static int search(struct plan_request *r, const struct hd__cli_job_arguments *arguments, const struct hd__machine *m,
                  int64_t ranks)
{
    enum { MOST_RANKS = 4096 };
    struct hd__cli_job_arguments any = *arguments;
    int64_t fit = r->fewest ? 1 : ranks;
    struct hd__cli_job loaded = {0};
    struct hd__search found = {0};
    struct hd_error err = HD_ERROR_INIT, below = HD_ERROR_INIT;
    any.before_resolve = free_mesh;
    any.user = &fit;
    any.unchosen = 1;
    int code = hd__cli_resolve_job(&any, fit, &loaded);
    if (!code) {
        struct hd__search_request request = {.file = arguments->file,
                                             .overrides = arguments->overrides,
                                             .n_overrides = arguments->n_overrides,
                                             .device = r->device,
                                             .machine = m,
                                             .assume = &r->assume,
                                             .plugins = loaded.plugins,
                                             .ranks = ranks       ? ranks
                                                      : r->fewest ? MOST_RANKS
                                                                  : loaded.job->ranks};
        warn_of_chosen(loaded.job, r->fewest ? "--fewest" : "--search");
        hd__log_setup(HD_LOG_ERROR, NULL); /* warnings of plans that were only tried */
        code = hd__cli_refuse_lost(&loaded, r->fewest ? "--fewest" : "--search");
        if (!code && (r->fewest ? hd__search_fewest(&request, &ranks, &found, &below, &err)
                                : hd__search(&request, &found, &err)))
            code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    if (!code) {
        r->page.name = loaded.job->name;
        r->page.ranks = found.best[0].plan.ranks;
        code = r->fewest ? print_fewest(r, &found, ranks, &below) : print_found(r, &found);
    }
    hd__search_free(&found);
    hd__cli_unload_job(&loaded);
    return code;
}

/* ---- several plans, a row each */

/* The length of the first value of a list: commas in brackets and braces belong to it. */
static size_t value_length(const char *list)
{
    size_t n = 0;
    int depth = 0;
    for (; list[n] && (depth > 0 || list[n] != ','); n++)
        depth += (list[n] == '[' || list[n] == '{') - (list[n] == ']' || list[n] == '}');
    return n;
}

/* The head stands above the first row that there is. */
static void print_row(struct plan_request *r, const char *label, const struct hd__plan *p)
{
    char seconds[32], bytes[32], ranks[24] = "", job[80] = "", count[2][32];
    if (!r->rows++)
        printf("%-32s %s%s%9s %11s %8s %8s %11s\n", "", r->ranks_differ ? "  ranks " : "",
               r->compare ? "parameters tokens/step " : "", "step", "tokens/s", "MFU", "bubble", "memory");
    if (r->ranks_differ)
        snprintf(ranks, sizeof ranks, "%7lld ", (long long)p->ranks);
    if (r->compare)
        snprintf(job, sizeof job, "%10s %11s ", hd__plan_count_text((double)p->parameters, count[0]),
                 hd__plan_count_text((double)p->tokens, count[1]));
    printf("%-32s %s%s%9s %9.1f K %6.1f %% %6.1f %% %11s%s\n", label, ranks, job, hd__seconds_text(p->seconds, seconds),
           (double)p->tokens / p->seconds / 1e3, 100 * p->model_flops / p->seconds / p->peak_flops, 100 * p->bubble,
           hd__bytes_text((uint64_t)p->peak, bytes), p->fits ? "" : "  DOES NOT FIT");
}

/* Loads and plans one job; *loaded is the caller's to unload, whatever comes of it. */
static int load_and_plan(struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                         const struct hd__machine *m, int64_t ranks, struct hd__cli_job *loaded, struct hd__plan *plan)
{
    struct hd_error err = HD_ERROR_INIT;
    int code = load(r, arguments, ranks, loaded);
    if (!code && hd__plan_make(loaded->compiled, m, &r->assume, plan, &err))
        code = hd__cli_print_error(&err, err.code == HD_E_INVALID ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    return code;
}

/* Plans one job, adds it to `rows` and prints it. A refusal is a row too. */
static int add_row(struct plan_request *r, const struct hd__cli_job_arguments *arguments, const struct hd__machine *m,
                   int64_t ranks, const char *label, json_t *rows)
{
    struct hd__cli_job loaded = {0};
    struct hd__plan plan;
    hd__speaker_defer(1);
    int code = load_and_plan(r, arguments, m, ranks, &loaded, &plan);
    hd__speaker_defer(0);
    json_t *object = code ? json_pack("{s:s}", "error", hd__speaker_deferred())
                          : hd__plan_json(&plan, m, (double)plan.tokens * (double)loaded.job->steps);
    json_object_set_new(object, "words", hd__cli_json_text(label, strlen(label)));
    json_array_append_new(rows, object);
    if (code && !r->json)
        printf("%-32s refused: %s\n", label, hd__speaker_deferred());
    else if (!r->json)
        print_row(r, label, &plan);
    fflush(stdout);
    hd__cli_unload_job(&loaded);
    return code;
}

/* The job with each value of --sweep KEY=A,B,..., some of them planned, or as it is; then the file of --compare. */
static int add_rows(struct plan_request *r, const struct hd__cli_job_arguments *arguments, const struct hd__machine *m,
                    int64_t ranks, json_t *rows)
{
    const char *values = r->sweep ? strchr(r->sweep, '=') : NULL;
    const char **words = hd__alloc((arguments->n_overrides + 1) * sizeof *words);
    struct hd__cli_job_arguments all = {arguments->file, words, arguments->n_overrides + 1};
    int code = values ? HD__EXIT_REFUSED : add_row(r, arguments, m, ranks, arguments->file, rows);
    memcpy(words, arguments->overrides, arguments->n_overrides * sizeof *words);
    while (values && *values) {
        size_t n = value_length(values + 1);
        char *word = hd__format("%.*s=%.*s", (int)strcspn(r->sweep, "="), r->sweep, (int)n, values + 1);
        words[arguments->n_overrides] = word;
        code = add_row(r, &all, m, ranks, word, rows) ? code : HD__EXIT_DONE;
        values += 1 + n;
        free(word);
    }
    json_t *plans = json_deep_copy(rows), *plan;
    size_t i, same = 0;
    json_array_foreach(plans, i, plan)
    {
        same += !json_object_del(plan, "words") && json_equal(plan, json_array_get(plans, 0));
    }
    if (!code && values && i > 1 && same == i)
        hd__log(HD_LOG_WARN, NULL, "--sweep: no plan of these depends on %.*s: all rows are the same",
                (int)strcspn(r->sweep, "="), r->sweep);
    json_decref(plans);
    all.file = r->compare;
    all.n_overrides = arguments->n_overrides;
    if (!code && r->compare)
        code = add_row(r, &all, m, ranks, r->compare, rows);
    if (code)
        hd__speaker_print(hd__speaker_deferred());
    free(words);
    return code;
}

static int print_rows(struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                      const struct hd__machine *m, int64_t ranks)
{
    json_t *rows = json_array();
    r->ranks_differ = r->compare || !strncmp(r->sweep, "mesh", 4) || !strncmp(r->sweep, "launch.", 7);
    int code = add_rows(r, arguments, m, ranks, rows);
    if (!code)
        code = finish(r, json_pack("{s:O}", "plans", rows));
    json_decref(rows);
    return code;
}

/* ---- one job on several numbers of ranks */

struct scaling {
    struct plan_request *r;
    struct hd__cli_job_arguments arguments; /* those of the command, and set_scaled */
    const struct hd__machine *machine;
    json_t *rows;
    HD__ARRAY(int64_t) list;
    int64_t ranks, batch;  /* of the row */
    struct hd__plan first; /* the first row's, which is one of both kinds */
    double rate, empty;    /* tokens/s of a rank in the first row; share of the row's places that is empty */
    int64_t weak;
};

static const char *kind_of(const struct scaling *s)
{
    return s->weak ? "weak" : "strong";
}

/* dp takes what the job's other axes leave. A micro-batch is the job's own where that divides a rank's part of the
 * batch, else the next smaller one that does; what ranks do not divide is filled up unless the job says never. */
static int32_t set_scaled(void *user, struct hd__job *job, struct hd_error *err)
{
    struct scaling *s = user;
    int64_t *asked = job->mesh_asked, inside = 1, places, part;
    int is_auto = 0;
    (void)err;
    for (int a = 0; a < HD_AXIS_COUNT; a++) {
        int data = a == HD_AXIS_DP_REPLICATE || a == HD_AXIS_DP_SHARD || a == HD_AXIS_EP || a == HD_AXIS_TQ;
        is_auto |= a != HD_AXIS_TQ && !asked[a];
        inside *= data || !asked[a] ? 1 : asked[a];
    }
    if (!is_auto)
        asked[asked[HD_AXIS_DP_SHARD] == 1 && asked[HD_AXIS_DP_REPLICATE] > 1 ? HD_AXIS_DP_REPLICATE
                                                                              : HD_AXIS_DP_SHARD] = 0;
    job->batch = s->batch = s->weak ? job->batch * s->ranks / s->list.at[0] : job->batch;
    places = HD__MAX(1, s->ranks / inside);
    part = (job->batch + places - 1) / places;
    if (job->batch % places && job->pad_batch == HD__PAD_BATCH_AUTO)
        job->pad_batch = HD__PAD_BATCH_ALWAYS;
    else if (job->pad_batch == HD__PAD_BATCH_ALWAYS)
        return HD_OK;
    job->micro_batch_asked = HD__MIN(job->micro_batch_asked, part);
    while (job->micro_batch_asked > 1 && part % job->micro_batch_asked)
        job->micro_batch_asked--;
    return HD_OK;
}

static int refuse_row(const struct scaling *s, int code)
{
    if (code)
        fprintf(stderr, "heddle plan: --scaling: in the %s row of %lld ranks, whose batch is %lld\n", kind_of(s),
                (long long)s->ranks, (long long)s->batch);
    return code;
}

static void add_scaled_row(struct scaling *s, const struct hd__plan *p)
{
    double exposed = 0, rate = (double)p->tokens / p->seconds, mfu = p->model_flops / p->seconds / p->peak_flops;
    double each = rate / (double)p->ranks;
    const char *binds = hd__plan_binds(p, s->machine);
    char step[32], waits[32], bytes[32], empty[32] = "";
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        exposed += p->exposed[a];
    s->rate = s->rate > 0 ? s->rate : each;
    json_array_append_new(s->rows, json_pack("{s:s s:I s:I s:f s:f s:f s:f s:f s:f s:I s:b s:s}", "kind", kind_of(s),
                                             "ranks", (json_int_t)p->ranks, "batch", (json_int_t)s->batch, "step_s",
                                             p->seconds, "tokens_per_s", rate, "efficiency", each / s->rate, "mfu", mfu,
                                             "exposed_s", exposed, "empty", s->empty, "memory", (json_int_t)p->peak,
                                             "fits", p->fits, "binds", binds));
    if (s->r->json)
        return;
    if (!s->r->rows++)
        printf("%-7s %7s %8s %9s %12s %11s %8s %9s %11s  %s\n", "", "ranks", "batch", "step", "tokens/s", "efficiency",
               "MFU", "exposed", "memory", "what binds");
    if (s->empty > 0)
        snprintf(empty, sizeof empty, "; %.0f %% empty places", 100 * s->empty);
    printf("%-7s %7lld %8lld %9s %10.1f K %9.1f %% %6.1f %% %9s %11s  %s%s%s\n", kind_of(s), (long long)p->ranks,
           (long long)s->batch, hd__seconds_text(p->seconds, step), rate / 1e3, 100 * each / s->rate, 100 * mfu,
           hd__seconds_text(exposed, waits), hd__bytes_text((uint64_t)p->peak, bytes), binds, empty,
           p->fits ? "" : "  DOES NOT FIT");
    fflush(stdout);
}

static void set_empty(struct scaling *s, const struct hd__job *job)
{
    int64_t empty = hd__job_empty_sequences(job);
    s->empty = (double)empty / (double)(empty + s->batch);
}

static int plan_scaled(struct scaling *s)
{
    struct hd__cli_job loaded = {0};
    struct hd__plan plan;
    int code = load_and_plan(s->r, &s->arguments, s->machine, s->ranks, &loaded, &plan);
    if (!code) {
        set_empty(s, loaded.job);
        if (!s->first.ranks)
            s->first = plan;
        add_scaled_row(s, &plan);
    }
    hd__cli_unload_job(&loaded);
    return refuse_row(s, code);
}

static int resolve_scaled(struct scaling *s)
{
    struct hd__cli_job loaded = {0};
    int code = hd__cli_resolve_job(&s->arguments, s->ranks, &loaded);
    if (!code)
        set_empty(s, loaded.job);
    hd__cli_unload_job(&loaded);
    return refuse_row(s, code);
}

/* All rows of both kinds; the first weak one is the first strong one. */
static int for_rows(struct scaling *s, int plans)
{
    int code = HD__EXIT_DONE;
    for (s->weak = 0; s->weak < 2 && !code; s->weak++) {
        s->rate = 0;
        for (uint32_t i = 0; i < s->list.count && !code; i++) {
            s->ranks = s->list.at[i];
            code = plans && (i || !s->weak) ? plan_scaled(s) : resolve_scaled(s);
            if (!code && plans && s->weak && !i)
                add_scaled_row(s, &s->first);
        }
    }
    return code;
}

static int parse_scaling(struct scaling *s)
{
    const char *at = s->r->scaling;
    while (at) {
        char *end = NULL;
        long long ranks = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : 0;
        if (ranks < 1 || ranks > 65536 || (*end && *end != ','))
            return hd__cli_usage_error(
                &hd__command_plan,
                "--scaling %s: wanted numbers of ranks, 1 to 65536, with commas between them, as "
                "64,128,256",
                s->r->scaling);
        hd__push(&s->list, ranks);
        at = *end ? end + 1 : NULL;
    }
    return HD__EXIT_DONE;
}

/* A batch that grows with the ranks is a whole number for each of them. */
static int check_weak_batches(const struct scaling *s)
{
    struct hd__cli_job loaded = {0};
    int code = hd__cli_resolve_job(&s->arguments, s->list.at[0], &loaded);
    for (uint32_t i = 0; i < s->list.count && !code; i++)
        if (loaded.job->batch * s->list.at[i] % s->list.at[0])
            code = hd__cli_usage_error(&hd__command_plan,
                                       "--scaling: a batch of %lld on %lld ranks is no whole number on %lld: take a "
                                       "data.batch that %lld divides",
                                       (long long)loaded.job->batch, (long long)s->list.at[0], (long long)s->list.at[i],
                                       (long long)s->list.at[0]);
    hd__cli_unload_job(&loaded);
    return code;
}

static int print_scaling(struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                         const struct hd__machine *m)
{
    struct scaling s = {.r = r, .arguments = *arguments, .machine = m, .rows = json_array()};
    int code = parse_scaling(&s);
    s.arguments.before_resolve = set_scaled;
    s.arguments.user = &s;
    if (!code) {
        s.ranks = s.list.at[0];
        code = check_weak_batches(&s);
    }
    if (!code)
        code = for_rows(&s, 0); /* what is refused before anything is printed */
    if (!code)
        code = for_rows(&s, 1);
    if (!code)
        code = finish(r, json_pack("{s:O}", "scaling", s.rows));
    json_decref(s.rows);
    free(s.list.at);
    return code;
}

/* Options of a single plan that are crossed with those of several, and the form of --sweep. */
static int check_request(struct plan_request *r)
{
    const char *many = r->scaling   ? "--scaling"
                       : r->sweep   ? "--sweep"
                       : r->compare ? "--compare"
                       : r->search  ? "--search"
                       : r->fewest  ? "--fewest"
                                    : NULL;
    struct hd_error err = HD_ERROR_INIT;
    const char *value = r->sweep ? strchr(r->sweep, '=') : NULL, *crossed = r->tokens ? "--tokens is" : NULL;
    if ((r->search || r->fewest) && (r->assume.stage_f > 0 || r->assume.speeds.count))
        crossed = r->assume.speeds.count ? "--assume: speeds are" : "--assume: times of measured stages are";
    if (r->fewest && r->assume.memory.count)
        crossed = "--assume: memory of parts is";
    if (many && crossed)
        return hd__cli_usage_error(&hd__command_plan, "%s of a single plan: not with %s", crossed, many);
    if (r->scaling && (r->sweep || r->compare || r->search || r->fewest || r->ranks))
        return hd__cli_usage_error(&hd__command_plan,
                                   "--scaling names the ranks of one job: not with --ranks, --sweep, --compare, "
                                   "--search or --fewest");
    if (r->search && r->fewest)
        return hd__cli_usage_error(&hd__command_plan, "--fewest searches by itself: not with --search");
    if ((r->search || r->fewest) && (r->sweep || r->compare))
        return hd__cli_usage_error(&hd__command_plan, "%s chooses by itself: not with %s",
                                   r->search ? "--search" : "--fewest", many);
    if (r->sweep && (!value || value == r->sweep))
        return hd__cli_usage_error(&hd__command_plan,
                                   "--sweep %s: wanted KEY=VALUE,VALUE,..., as data.micro_batch=1,2,4", r->sweep);
    if (r->html && *r->html == '-')
        return hd__cli_usage_error(&hd__command_plan, "--html wants a file");
    if (r->html && hd__output_check(r->html, HD__OUTPUT_MARK, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    return HD__EXIT_DONE;
}

/* Assumptions about axes that the mesh has not. */
static void warn_idle(const struct hd__assume *a, const struct hd__job *job)
{
    const char *idle = job->mesh[HD_AXIS_TP] > 1 ? NULL
                       : a->blocking_tp          ? "tp_overlap"
                       : a->pipelined_tp         ? "tp_pipelined"
                                                 : NULL;
    if (idle)
        hd__log(HD_LOG_WARN, NULL, "--assume: %s has no effect: mesh.tp is 1", idle);
    if (a->blocking_dp && job->ranks == job->mesh[HD_AXIS_TP] * job->mesh[HD_AXIS_PP])
        hd__log(HD_LOG_WARN, NULL, "--assume: dp_overlap has no effect: mesh.dp is 1");
    if (a->whole_recompute && job->recompute <= HD__RECOMPUTE_SELECTIVE)
        hd__log(HD_LOG_WARN, NULL, "--assume: whole_recompute has no effect: the job recomputes no whole blocks");
}

static int run(int argc, char **argv)
{
    struct plan_request r = {.machine = "h100-8"};
    const struct hd__cli_flag flags[] = {
        {"--machine", &r.machine, NULL}, {"--ranks", &r.ranks, NULL},   {"--tokens", &r.tokens, NULL},
        {"--assume", &r.assumed, NULL},  {"--sweep", &r.sweep, NULL},   {"--compare", &r.compare, NULL},
        {"--scaling", &r.scaling, NULL}, {"--search", NULL, &r.search}, {"--fewest", NULL, &r.fewest},
        {"--json", NULL, &r.json},       {"--html", &r.html, NULL}};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd__machine machine = {0};
    double ranks = 0, tokens = 0;
    int code = hd__cli_job_arguments(&hd__command_plan, argc, argv, flags, HD__COUNT(flags), &arguments);
    hd__cli_keep_freed();
    arguments.machine = r.machine;
    if (!code && r.ranks)
        code = parse_count("--ranks", r.ranks, &ranks);
    if (!code && r.tokens)
        code = parse_count("--tokens", r.tokens, &tokens);
    if (!code && r.assumed && hd__assume_parse(r.assumed, &r.assume, &err))
        code = hd__cli_usage_error(&hd__command_plan, "--assume: %s", err.message);
    if (!code && hd__machine_read(r.machine, &machine, &err))
        code = hd__cli_usage_error(&hd__command_plan, "--machine: %s", err.message);
    if (!code)
        code = check_request(&r);
    if (!code)
        r.device = find_device(&machine);
    r.page = (struct hd__plan_page){
        .words = (const char *const *)argv, .name = arguments.file, .machine = &machine, .assumed = r.assumed};
    if (!code && (r.scaling || r.search || r.fewest || r.sweep || r.compare)) {
        code = r.scaling ? print_scaling(&r, &arguments, &machine)
                         : (r.search || r.fewest ? search : print_rows)(&r, &arguments, &machine, (int64_t)ranks);
        hd__machine_free(&machine);
        return code;
    }
    if (!code)
        code = load(&r, &arguments, (int64_t)ranks, &loaded);
    if (!code)
        hd__cli_print_warnings(&arguments, &loaded);
    if (!code)
        warn_idle(&r.assume, loaded.job);
    if (!code)
        hd__cli_warn_machine(loaded.job, &machine);
    if (!code)
        code = print_plan(&r, loaded.compiled, &machine, tokens);
    hd__cli_unload_job(&loaded);
    hd__machine_free(&machine);
    return code;
}

const struct hd__command hd__command_plan = {
    .name = "plan",
    .usage = "JOB [key=value ...] [--machine NAME | FILE.yaml] [--ranks N] [--tokens N] [--assume KEY=VALUE,...] "
             "[--search | --fewest] [--sweep KEY=VALUE,...] [--compare FILE.yaml] [--scaling N,N,...] [--json] "
             "[--html FILE]",
    .summary = "memory, time, traffic and cost of a job on a kind of machine",
    .help =
        "Compiles the job for the machine's device and says what a step needs: memory by kind, exact to the byte,\n"
        "and time, MFU, bubble, traffic and exposed communication, simulated from the machine's published figures;\n"
        "then time, cost, energy and failures of the whole training. Nothing is run; neither data nor weights nor\n"
        "such a machine are needed: data.train may name no file (none), model.from needs its config.json alone.\n\n"
        "  --machine NAME    a100-80-8, h100-8, h200-8, b200-8, cpu, or a file as machines/h100-8.yaml (h100-8)\n"
        "  --ranks N         on so many ranks (default: as the job says)\n"
        "  --tokens N        of the whole training: 1T, 300B (default: the job's steps)\n"
        "  --assume K=V,...  how another system differs from heddle's programs, for its time: fused_attention=no,\n"
        "                    dropout=yes, tp_overlap=no, tp_pipelined=yes, dp_overlap=no, fused_kernels=no,\n"
        "                    fused_optimizer=no, whole_recompute=yes, recomputed_products=SHARE; memory by closed "
        "forms\n"
        "                    too: states=BYTES a parameter; stages as measured: stage_f, stage_b, stage_w, "
        "stage_send;\n"
        "                    of equal parts of the ranks, in their order: speeds=1:1:0.5 of compute, where the\n"
        "                    machine's is 1, and memory=80GB:40GB\n"
        "  --search          the ten fastest meshes, ZeRO stages, schedules, micro-batches and recomputes that fit, "
        "and\n"
        "                    the job file of the fastest\n"
        "  --sweep KEY=A,B   a row for the job with each of these values\n"
        "  --compare FILE    a row for the job and one for this\n"
        "  --scaling N,N,... rows for so many ranks: strong with the job's batch, weak with as much of it a rank\n"
        "  --json            for machines\n"
        "  --html FILE       writes the same as a page with charts that needs nothing beside it; FILE replaces\n"
        "                    nothing but an older page of heddle's\n",
    .example = "  heddle plan examples/llama.yaml --machine h100-8 --ranks 64 --tokens 300B\n",
    .run = run,
};
