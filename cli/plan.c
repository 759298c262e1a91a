/* heddle plan: what a job would need and do on a kind of machine. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "analysis/plan/search.h"
#include "cli/job.h"

struct plan_request {
    const char *machine, *ranks, *tokens, *assumed, *sweep, *compare;
    int json, search;
    struct hd__assume assume;
};

/* 1T, 300B, 1.5e12: tokens, or a number of ranks. */
static int parse_count(const char *flag, const char *text, double *out)
{
    static const char units[] = "KMBT";
    char *end;
    *out = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        *out *= 1000;
    if (end != text && !end[unit != NULL] && *out >= 1 && *out <= 1e18 && *out == floor(*out))
        return HD__EXIT_DONE;
    return hd__cli_usage_error(&hd__command_plan, "%s %s: wanted a whole number of at least 1, as 64, 300B or 1.5T",
                               flag, text);
}

static int print_plan(const struct plan_request *r, const struct hd__compiled *c, const struct hd__machine *m,
                      double tokens)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plan plan;
    if (hd__plan_make(c, m, &r->assume, &plan, &err))
        return hd__cli_print_error(&err, err.code == HD_E_INVALID ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    if (!(tokens > 0))
        tokens = (double)plan.tokens * (double)c->job->steps;
    if (r->json) {
        json_t *object = hd__plan_json(&plan, m, tokens);
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(object);
    } else {
        struct hd__text text = {0};
        hd__plan_text(&plan, m, tokens, &text);
        hd__text_print(&text, stdout);
    }
    return HD__EXIT_DONE;
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

/* A search sets strategies 3d and zero anew; any other would be lost. */
static int refuse_other_strategies(const struct hd__job *job)
{
    for (uint64_t i = 0; i < job->n_strategies; i++) {
        const char *use = job->strategies[i]->use;
        if (strcmp(use, "3d") && strcmp(use, "zero") && strcmp(use, "fsdp") && strcmp(use, "ddp") &&
            strcmp(use, "megatron"))
            return hd__cli_usage_error(
                &hd__command_plan,
                "--search chooses among strategies 3d and zero, and the job has %s: take it out, "
                "or plan this job without --search",
                use);
    }
    return HD__EXIT_DONE;
}

/* The job with the machine's device and, where --ranks says so, as many ranks. */
static int load(const struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                const struct hd__machine *m, int64_t ranks, struct hd__cli_job *loaded)
{
    /* Gradients of weights stay where the schedule has them if stages were measured. */
    uint32_t flags = r->assume.stage_f > 0 ? HD__COMPILE_KEEP_WEIGHT_ORDER : 0;
    struct hd_error err = HD_ERROR_INIT;
    struct hd__cli_job_arguments all = *arguments;
    const char **words = hd__alloc((arguments->n_overrides + 2) * sizeof *words);
    char *device = hd__format("device.use=%s", find_device(m)),
         *launch = hd__format("launch.ranks=%lld", (long long)ranks);
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

static int search(const struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                  const struct hd__machine *m, int64_t ranks)
{
    struct hd__cli_job loaded = {0};
    struct hd__search found = {0};
    struct hd_error err = HD_ERROR_INIT;
    int code = hd__cli_resolve_job(arguments, ranks, &loaded);
    if (!code) {
        const struct hd__search_request request = {.file = arguments->file,
                                                   .overrides = arguments->overrides,
                                                   .n_overrides = arguments->n_overrides,
                                                   .device = find_device(m),
                                                   .machine = m,
                                                   .assume = &r->assume,
                                                   .plugins = loaded.plugins,
                                                   .ranks = ranks ? ranks : loaded.job->ranks};
        hd__log_setup(HD_LOG_ERROR, NULL); /* warnings of plans that were only tried */
        code = refuse_other_strategies(loaded.job);
        if (!code && hd__search(&request, &found, &err))
            code = hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    if (!code && r->json) {
        json_t *object = hd__search_json(&found);
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(object);
    } else if (!code) {
        struct hd__text text = {0};
        hd__search_text(&found, &text);
        hd__text_print(&text, stdout);
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

static void print_row(const char *label, const struct hd__plan *p)
{
    char seconds[32], bytes[32];
    printf("%-32s %9s %9.1f K %6.1f %% %6.1f %% %11s%s\n", label, hd__seconds_text(p->seconds, seconds),
           (double)p->tokens / p->seconds / 1e3, 100 * p->model_flops / p->seconds / p->peak_flops, 100 * p->bubble,
           hd__bytes_text((uint64_t)p->peak, bytes), p->peak > p->limit ? "  DOES NOT FIT" : "");
}

/* Plans one job; `rows`: of JSON, or NULL to print it. */
static int add_row(const struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                   const struct hd__machine *m, int64_t ranks, const char *label, json_t *rows)
{
    struct hd__cli_job loaded = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plan plan;
    int code = load(r, arguments, m, ranks, &loaded);
    if (!code && hd__plan_make(loaded.compiled, m, &r->assume, &plan, &err))
        code = hd__cli_print_error(&err, err.code == HD_E_INVALID ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    if (!code && rows) {
        json_t *object = hd__plan_json(&plan, m, (double)plan.tokens * (double)loaded.job->steps);
        json_object_set_new(object, "words", json_string(label));
        json_array_append_new(rows, object);
    } else if (!code) {
        print_row(label, &plan);
        fflush(stdout);
    }
    hd__cli_unload_job(&loaded);
    return code;
}

/* The job with each value of --sweep KEY=A,B,..., or as it is; then the file of --compare. */
static int add_rows(const struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                    const struct hd__machine *m, int64_t ranks, json_t *rows)
{
    const char *values = r->sweep ? strchr(r->sweep, '=') : NULL;
    const char **words = hd__alloc((arguments->n_overrides + 1) * sizeof *words);
    struct hd__cli_job_arguments all = {arguments->file, words, arguments->n_overrides + 1};
    int code = values ? HD__EXIT_DONE : add_row(r, arguments, m, ranks, arguments->file, rows);
    memcpy(words, arguments->overrides, arguments->n_overrides * sizeof *words);
    while (!code && values && *values) {
        size_t n = value_length(values + 1);
        char *word = hd__format("%.*s=%.*s", (int)strcspn(r->sweep, "="), r->sweep, (int)n, values + 1);
        words[arguments->n_overrides] = word;
        code = add_row(r, &all, m, ranks, word, rows);
        values += 1 + n;
        free(word);
    }
    all.file = r->compare;
    all.n_overrides = arguments->n_overrides;
    if (!code && r->compare)
        code = add_row(r, &all, m, ranks, r->compare, rows);
    free(words);
    return code;
}

static int print_rows(const struct plan_request *r, const struct hd__cli_job_arguments *arguments,
                      const struct hd__machine *m, int64_t ranks)
{
    json_t *rows = r->json ? json_array() : NULL;
    if (!rows)
        printf("%-32s %9s %11s %8s %8s %11s\n", "", "step", "tokens/s", "MFU", "bubble", "memory");
    int code = add_rows(r, arguments, m, ranks, rows);
    if (!code && rows) {
        json_t *object = json_pack("{s:O}", "plans", rows);
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(object);
    }
    json_decref(rows);
    return code;
}

/* Options of a single plan that are crossed with those of several, and the form of --sweep. */
static int check_request(const struct plan_request *r)
{
    const char *many = r->sweep ? "--sweep" : r->compare ? "--compare" : r->search ? "--search" : NULL;
    const char *value = r->sweep ? strchr(r->sweep, '=') : NULL, *crossed = r->tokens ? "--tokens is" : NULL;
    if (r->search && r->assume.stage_f > 0)
        crossed = "--assume: times of measured stages are";
    if (many && crossed)
        return hd__cli_usage_error(&hd__command_plan, "%s of a single plan: not with %s", crossed, many);
    if (r->search && (r->sweep || r->compare))
        return hd__cli_usage_error(&hd__command_plan, "--search chooses by itself: not with %s", many);
    if (r->sweep && (!value || value == r->sweep))
        return hd__cli_usage_error(&hd__command_plan,
                                   "--sweep %s: wanted KEY=VALUE,VALUE,..., as data.micro_batch=1,2,4", r->sweep);
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct plan_request r = {.machine = "h100-8"};
    const struct hd__cli_flag flags[] = {{"--machine", &r.machine, NULL}, {"--ranks", &r.ranks, NULL},
                                         {"--tokens", &r.tokens, NULL},   {"--assume", &r.assumed, NULL},
                                         {"--sweep", &r.sweep, NULL},     {"--compare", &r.compare, NULL},
                                         {"--search", NULL, &r.search},   {"--json", NULL, &r.json}};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd__machine machine = {0};
    double ranks = 0, tokens = 0;
    int code = hd__cli_job_arguments(&hd__command_plan, argc, argv, flags, HD__COUNT(flags), &arguments);
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
    if (!code && (r.search || r.sweep || r.compare)) {
        code = (r.search ? search : print_rows)(&r, &arguments, &machine, (int64_t)ranks);
        hd__machine_free(&machine);
        return code;
    }
    if (!code)
        code = load(&r, &arguments, &machine, (int64_t)ranks, &loaded);
    if (!code)
        hd__cli_say_notes(&loaded);
    if (!code)
        code = print_plan(&r, loaded.compiled, &machine, tokens);
    hd__cli_unload_job(&loaded);
    hd__machine_free(&machine);
    return code;
}

const struct hd__command hd__command_plan = {
    .name = "plan",
    .usage = "JOB [key=value ...] [--machine NAME | FILE.yaml] [--ranks N] [--tokens N] [--assume KEY=VALUE,...] "
             "[--search] [--sweep KEY=VALUE,...] [--compare FILE.yaml] [--json]",
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
        "                    too: states=BYTES a parameter; stages as measured: stage_f, stage_b, stage_w, stage_send\n"
        "  --search          the ten fastest meshes, ZeRO stages, schedules, micro-batches and recomputes that fit, "
        "and\n"
        "                    the job file of the fastest\n"
        "  --sweep KEY=A,B   a row for the job with each of these values\n"
        "  --compare FILE    a row for the job and one for this\n"
        "  --json            for machines\n",
    .example = "  heddle plan examples/llama.yaml --machine h100-8 --ranks 64 --tokens 300B\n",
    .run = run,
};
