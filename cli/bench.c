/* heddle bench: transports side by side, in the columns of nccl-tests; or a device's peak (bench/peak.c). */
#include <float.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/bench/ranks.h"
#include "cli/command.h"
#include "core/base/dtype.h"
#include "core/base/file.h"
#include "core/base/option.h"
#include "heddle/device.h"
#include "runtime/comm/tuning_file.h"
#include "runtime/cpu/parallel_for.h"
#include "runtime/rendezvous/host_store.h"
#include "service/launch/external.h"
#include "service/launch/launch.h"
#include "service/train/train.h"

enum { COMMS_MAX = 8, SETS_MAX = 32 };

struct bench_arguments {
    struct hd__arena arena; /* split words of the command line, and settings */
    struct hd__bench bench;
    const char *comm[COMMS_MAX]; /* as given: libfabric:provider=tcp */
    const char *set[SETS_MAX], *device, *html, *svg, *tune;
    int any_order;
    const char *only_transports; /* the first option that --peak does not take */
    int trains;                  /* --train */
    int comms, sets, json, peak, out_of_place, overlap;
    int32_t asked; /* --ranks; 0: not given */
    struct hd__bench_launch launch;
};

struct output {
    const struct bench_arguments *a;
    const char *comm;
    struct hd__bench_table table;
    json_t *rows;
    uint64_t errors, noisy;
};

/* ---- the command line */

static int parse_size(const char *text, uint64_t *out)
{
    char *end;
    double v = strtod(text, &end);
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit && *unit) {
        for (const char *u = units; u <= unit; u++)
            v *= 1024;
        end++;
    }
    if (end == text || *end || !(v >= 1 && v <= 1e13))
        return 0;
    *out = (uint64_t)v;
    return 1;
}

static int parse_count(const char *text, double least, double most, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end || (double)v < least || (double)v > most)
        return 0;
    *out = (uint32_t)v;
    return 1;
}

#define NAME_COMMA(constant, value, name, bytes) name ", "
#define DTYPE_NAMES HD_DTYPES(NAME_COMMA) "or as nccl-tests call it"

static int parse_dtype(const char *text, uint32_t *out)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++)
        if (strcmp(text, hd_dtype_name(d)) == 0 || strcmp(text, hd__dtype(d)->nccl_tests) == 0) {
            *out = d;
            return 1;
        }
    return 0;
}

/* Splits "a,b" in place. */
static int split(char *text, const char **out, int most)
{
    int n = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        if (n == most)
            return -1;
        out[n++] = word;
    }
    return n;
}

static int parse_ops(char *text, struct hd__bench *b)
{
    const char *names[HD__BENCH_OP_COUNT];
    int n = split(text, names, HD__BENCH_OP_COUNT);
    b->n_ops = 0;
    for (int i = 0; i < n; i++) {
        int32_t op = hd__bench_op_find(names[i]);
        if (op < 0)
            return 0;
        b->ops[b->n_ops++] = (uint32_t)op;
    }
    return n > 0;
}

enum { FLAG, TEXT, COUNT, NUMBER, SIZE, COMMS, OPS, DTYPE, SET };
#define AT(field) offsetof(struct bench_arguments, field)
#define SIZES "a size of a byte or more: 8, 64K, 128M"
static const struct bench_option {
    const char *name;
    int kind;
    size_t at;
    double least, most;
    const char *wanted;
    int of_peak; /* allowed with --peak */
} options[] = {
    {"--comm", COMMS,
     .wanted = "names of transports with commas between them, at most 8: shm,mpi,libfabric:provider=tcp (`heddle "
               "plugins` lists them)"},
    {"--op", OPS,
     .wanted = "names with commas between them: all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, "
               "sendrecv, barrier"},
    {"--ranks", COUNT, AT(asked), 1, 1024, "a whole number from 1 to 1024"},
    {"--groups", COUNT, AT(bench.groups), 1, 1024, "a whole number from 1 to 1024"},
    {"-b", SIZE, AT(bench.first), .wanted = SIZES},
    {"-e", SIZE, AT(bench.last), .wanted = SIZES, .of_peak = 1},
    {"-f", NUMBER, AT(bench.factor), 1 + DBL_EPSILON, 1e13, "a number above 1"},
    {"-n", COUNT, AT(bench.iterations), 1, 1e9, "a whole number from 1 up"},
    {"-w", COUNT, AT(bench.warmup), 0, 1e9, "a whole number from 0 up"},
    {"-d", DTYPE, .wanted = "one of " DTYPE_NAMES},
    {"--product", COUNT, AT(bench.product), 1, 32768, "a whole number from 1 to 32768"},
    {"--timeout", NUMBER, AT(bench.timeout), 0.01, 1e6, "seconds from 0.01 to 1000000"},
    {"--set", SET, .wanted = "OPTION=VALUE, at most 32 of them", .of_peak = 1},
    {"--device", TEXT, AT(device), .of_peak = 1},
    {"--html", TEXT, AT(html)},
    {"--svg", TEXT, AT(svg)},
    {"--tune", TEXT, AT(tune)},
    {"--json", FLAG, AT(json), .of_peak = 1},
    {"--in-place", FLAG, AT(bench.in_place)},
    {"--out-of-place", FLAG, AT(out_of_place)},
    {"--overlap", FLAG, AT(overlap)},
    {"--plain", FLAG, AT(bench.plain)},
    {"--peak", FLAG, AT(peak), .of_peak = 1},
    {"--any-order", FLAG, AT(any_order)}};

static int parse_value(struct bench_arguments *a, const struct bench_option *o, char *value)
{
    void *at = (char *)a + o->at;
    char *end;
    switch (o->kind) {
    case COUNT:
        return parse_count(value, o->least, o->most, at);
    case NUMBER:
        *(double *)at = strtod(value, &end);
        return *(double *)at >= o->least && *(double *)at <= o->most && !*end;
    case SIZE:
        return parse_size(value, at);
    case COMMS:
        return (a->comms = split(value, a->comm, COMMS_MAX)) > 0;
    case OPS:
        return parse_ops(value, &a->bench);
    case DTYPE:
        return parse_dtype(value, &a->bench.dtype);
    case SET:
        return strchr(value, '=') && a->sets < SETS_MAX && (a->set[a->sets++] = value) != NULL;
    default:
        *(const char **)at = value;
        return 1;
    }
}

static const struct bench_option *find_option(const char *word)
{
    for (size_t i = 0; i < HD__COUNT(options); i++)
        if (!strcmp(options[i].name, word))
            return &options[i];
    return NULL;
}

/* The remedy for a word that is no option. */
static const char *remedy(const char *word)
{
    static const char *const of_nccl_tests[] = {"-g", "-t", "--ngpus", "--nthreads"};
    for (size_t i = 0; i < HD__COUNT(of_nccl_tests); i++)
        if (!strcmp(word, of_nccl_tests[i]))
            return ": a rank is a process; --ranks N starts so many";
    return *word == '-' ? "" : ": a job goes behind --train";
}

static int parse(int argc, char **argv, struct bench_arguments *a)
{
    uint64_t given = 0; /* by place in the table */
    for (int i = 1; i < argc; i++) {
        const struct bench_option *o = find_option(argv[i]);
        if (!o)
            return hd__cli_usage_error(&hd__command_bench, "there is no option %s%s", argv[i], remedy(argv[i]));
        if (!a->only_transports && !o->of_peak)
            a->only_transports = argv[i];
        if (o->kind == FLAG) {
            *(int32_t *)((char *)a + o->at) = 1;
            continue;
        }
        if (++i == argc || find_option(argv[i]))
            return hd__cli_usage_error(&hd__command_bench, "%s wants a value", o->name);
        if (o->kind != SET && given >> (o - options) & 1)
            return hd__cli_usage_error(&hd__command_bench, "%s is given twice", o->name);
        given |= UINT64_C(1) << (o - options);
        if (!parse_value(a, o, hd__arena_strdup(&a->arena, argv[i])))
            return hd__cli_usage_error(&hd__command_bench, "%s '%s': wanted %s", o->name, argv[i], o->wanted);
    }
    size_t size = hd_dtype_size(a->bench.dtype);
    a->bench.ranks = a->asked ? a->asked : a->bench.ranks;
    if (!a->bench.last)
        a->bench.last = a->peak ? 256u << 20 : 128u << 20;
    if (a->peak && a->only_transports)
        return hd__cli_usage_error(&hd__command_bench, "%s is for transports, not for --peak", a->only_transports);
    if (!a->overlap && a->bench.product)
        return hd__cli_usage_error(&hd__command_bench, "--product wants --overlap");
    a->bench.product = a->overlap && !a->bench.product ? 256 : a->bench.product;
    if (a->any_order && !a->tune)
        return hd__cli_usage_error(&hd__command_bench, "--any-order is for --tune");
    if (a->tune && (a->html || a->svg || a->json || a->comms > 1))
        return hd__cli_usage_error(&hd__command_bench,
                                   "--tune is of one transport, and writes its file alone: no --html, --svg or --json");
    if (a->html && a->svg && !strcmp(a->html, a->svg))
        return hd__cli_usage_error(&hd__command_bench, "--html and --svg name one file");
    if (a->overlap && (a->html || a->svg || a->tune))
        return hd__cli_usage_error(&hd__command_bench, "--overlap goes with neither --html, --svg nor --tune");
    if (a->bench.in_place && a->out_of_place)
        return hd__cli_usage_error(&hd__command_bench, "--in-place and --out-of-place: without them both are measured");
    for (uint32_t i = 0; i < a->bench.n_ops && a->bench.in_place; i++)
        if (!hd__bench_has_in_place(a->bench.ops[i]) && a->bench.ops[i] != HD__BENCH_BARRIER)
            return hd__cli_usage_error(&hd__command_bench, "%s has no in-place form",
                                       hd__bench_op_name(a->bench.ops[i]));
    if (a->bench.last < HD__MAX(a->bench.first, size))
        return hd__cli_usage_error(&hd__command_bench, "-e is below -b, or below the %zu byte%s of a number", size,
                                   size > 1 ? "s" : "");
    return HD__EXIT_DONE;
}

/* ---- output */

static void title(const struct bench_arguments *a, char out[512])
{
    char machine[256];
    hd__bench_machine_text(machine);
    char groups[48] = "", each[32] = "";
    if (a->bench.groups > 1)
        snprintf(groups, sizeof groups, " in %d groups at once", a->bench.groups);
    if (a->bench.external && a->bench.external->local_ranks < a->bench.ranks)
        snprintf(each, sizeof each, ", %d a machine", a->bench.external->local_ranks);
    snprintf(out, 512, "%d ranks%s%s; %s; buffers of the %s", a->bench.ranks, each, groups, machine,
             a->bench.plain ? "caller" : "transport");
}

static void print_title(const struct bench_arguments *a)
{
    char text[512];
    title(a, text);
    printf("# %s\n", text);
    if (a->overlap)
        printf("# with fp32 products of %d x %d by device %s, as many as last as long; the best of all batches;\n"
               "# exposed = both - products; hidden = (products + alone - both) / min(products, alone)\n",
               a->bench.product, a->bench.product, a->bench.device->name);
    else
        printf("# time: the median over batches of the mean of calls back to back, of the slowest rank; p99: of single "
               "calls\n");
}

static void on_row(void *user, const struct hd__bench_row *r)
{
    struct output *o = user;
    const struct hd__bench *b = &o->a->bench;
    json_t *row =
        json_pack("{s:s, s:s, s:i, s:i, s:I, s:I, s:s, s:b}", "comm", o->comm, "op", hd__bench_op_name(r->op), "ranks",
                  (int)b->ranks, "groups", (int)HD__MAX(b->groups, 1), "bytes", (json_int_t)r->bytes, "count",
                  (json_int_t)r->count, "dtype", hd_dtype_name(b->dtype), "in_place", (int)r->in_place);
    json_t *numbers =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:I}", "time_us", r->time_us, "p50_us", r->p50_us, "p99_us", r->p99_us,
                  "algbw_gbs", r->algbw, "busbw_gbs", r->busbw, "errors", (json_int_t)r->errors);
    json_object_update(row, numbers);
    json_decref(numbers);
    json_object_set_new(row, "memory", json_string(b->memory_device ? b->memory_device->name : "host"));
    if (b->device) {
        numbers = json_pack("{s:I, s:f, s:f, s:f, s:f, s:o}", "products", (json_int_t)r->products, "products_us",
                            r->products_us, "alone_us", r->alone_us, "both_us", r->both_us, "exposed_us", r->exposed_us,
                            "hidden_percent", r->noisy ? json_null() : json_real(100 * r->hidden));
        o->noisy += r->noisy;
        json_object_update(row, numbers);
        json_decref(numbers);
    }
    o->errors += r->errors;
    if (!o->a->json && o->a->comms == 1)
        hd__bench_print_row(&o->table, r->op, row);
    json_array_append_new(o->rows, row);
}

/* ---- transports */

/* OPTION=VALUE words as a component's settings; the others get defaults. */
static int32_t parse_settings(const struct hd__component *c, const char *const *set, int sets, void *settings,
                              struct hd__arena *arena, struct hd_error *err)
{
    const char *kind = hd__kind_name(c->kind);
    struct hd__options table = {c->options, c->n_options, sizeof(struct hd_option)};
    int32_t code = hd__options_defaults(&table, settings, arena, err);
    for (int i = 0; i < sets && code == HD_OK; i++) {
        char name[128];
        const char *eq = strchr(set[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(eq - set[i]), set[i]);
        int64_t at = hd__option_find(&table, name);
        if (at < 0)
            return hd_fail(err, HD_E_INVALID, "%s-%s has no option %s (`heddle plugins %s-%s`)", kind, c->name, name,
                           kind, c->name);
        struct hd_option option = hd__option_at(&table, (size_t)at);
        struct hd_error why = HD_ERROR_INIT;
        code = hd__option_parse(&option, eq + 1, settings, arena, &why);
        if (code != HD_OK)
            hd_fail(err, code, "%s: %s", name, why.message);
    }
    return code;
}

int32_t hd__bench_find(struct hd__plugins *plugins, uint32_t kind, const char *name, const char *const *set, int sets,
                       struct hd__arena *arena, const struct hd__component **c, void **settings, struct hd_error *err)
{
    int32_t rc = hd__plugin_find(plugins, kind, name, c, err);
    if (rc || (rc = hd__plugin_probe(plugins, *c, err)))
        return rc;
    *settings = hd__arena_alloc(arena, HD__MAX((*c)->settings_size, (size_t)1));
    return parse_settings(*c, set, sets, *settings, arena, err);
}

struct transport {
    const struct hd__component *component, *inside, *memory_device; /* memory_device: whose memory it moves */
    void *settings, *inside_settings, *memory_settings;
};

static void use_transport(struct hd__bench *bench, const struct transport *transport)
{
    bench->component = transport->component;
    bench->settings = transport->settings;
    bench->intra = transport->inside;
    bench->intra_settings = transport->inside_settings;
    bench->memory_device = transport->memory_device;
    bench->memory_device_settings = transport->memory_settings;
}

/* ":inside=NAME": the transport inside machines, with its defaults; as comm.inside of a job. */
static int32_t find_inside(const struct bench_arguments *a, const char *name, struct hd__plugins *plugins,
                           struct hd__arena *arena, struct transport *out, struct hd_error *err)
{
    if (!a->bench.external)
        return hd_fail(
            err, HD_E_INVALID,
            "inside=%s wants ranks on machines that mpirun, srun or torchrun started them on: here is one machine",
            name);
    return hd__bench_find(plugins, HD_KIND_COMM, name, NULL, 0, arena, &out->inside, &out->inside_settings, err);
}

/* "NAME:OPTION=VALUE:...": options of this transport, applied after those of --set, which are for all. */
static int32_t find_transport(const struct bench_arguments *a, const char *text, struct hd__plugins *plugins,
                              struct hd__arena *arena, struct transport *out, struct hd_error *err)
{
    const char *set[2 * SETS_MAX];
    char *rest = hd__arena_strdup(arena, text), *name = strsep(&rest, ":");
    int sets = a->sets;
    int32_t rc;
    memcpy(set, a->set, sizeof a->set);
    *out = (struct transport){0};
    while (rest && sets < 2 * SETS_MAX) {
        set[sets] = strsep(&rest, ":");
        if (!strncmp(set[sets], "inside=", 7)) {
            if ((rc = find_inside(a, set[sets] + 7, plugins, arena, out, err)))
                return rc;
            continue;
        }
        if (!strchr(set[sets++], '='))
            return hd_fail(err, HD_E_INVALID, "--comm %s: '%s' is not OPTION=VALUE", text, set[sets - 1]);
    }
    return hd__bench_find(plugins, HD_KIND_COMM, name, set, sets, arena, &out->component, &out->settings, err);
}

static void print_json(const struct bench_arguments *a, json_t *rows)
{
    char machine[256];
    hd__bench_machine_text(machine);
    json_t *root = json_pack("{s:s, s:b, s:O}", "machine", machine, "plain", a->bench.plain, "rows", rows);
    hd__cli_print_json(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}

/* Output that needs all measurements. */
static int32_t report(const struct bench_arguments *a, json_t *rows, struct hd_error *err)
{
    char text[512];
    if (a->json)
        print_json(a, rows);
    else if (a->comms > 1)
        hd__bench_print_comparison(&a->bench, a->comm, a->comms, rows);
    title(a, text);
    int32_t rc = a->html ? hd__bench_write_html(a->html, text, a->bench.words + 1, rows, err) : HD_OK;
    return !rc && a->svg ? hd__bench_write_svg(a->svg, text, rows, err) : rc;
}

static int measure_all(struct bench_arguments *a, const struct transport *transports)
{
    struct output o = {.a = a, .table = {.bench = &a->bench}, .rows = json_array()};
    struct hd_error err = HD_ERROR_INIT;
    int32_t code = HD_OK;
    if (!a->json && hd__bench_is_root(&a->bench))
        print_title(a);
    for (int i = 0; i < a->comms && code == HD_OK; i++) {
        if (a->comms > 1 && isatty(2) && hd__bench_is_root(&a->bench))
            fprintf(stderr, "heddle bench: %s (%d of %d)\n", a->comm[i], i + 1, a->comms);
        o.comm = a->comm[i];
        a->bench.index = i;
        use_transport(&a->bench, &transports[i]);
        code = hd__bench_run(&a->bench, on_row, &o, &err);
    }
    if (code == HD_OK && hd__bench_is_root(&a->bench))
        code = report(a, o.rows, &err);
    json_decref(o.rows);
    if (o.noisy)
        hd__log(HD_LOG_WARN, NULL,
                "hidden is -: the products' times differ by more than the operation lasts: a smaller --product, or a "
                "larger -b");
    if (code != HD_OK)
        fprintf(stderr, "heddle bench: %s\n", err.message);
    else if (o.errors)
        fprintf(stderr, "heddle bench: %llu results are wrong\n", (unsigned long long)o.errors);
    return code != HD_OK || o.errors ? HD__EXIT_FAILED : HD__EXIT_DONE;
}

/* Memory check: two buffers a rank, all of them on this machine. */
static int32_t check_memory(const struct bench_arguments *a, struct hd_error *err)
{
    int32_t ranks = a->bench.external ? a->bench.external->local_ranks : a->bench.ranks;
    double need = 2.0 * (double)a->bench.last * ranks;
    int64_t left = hd__train_memory_available();
    char one[32], all[32], here[32];
    if (left <= 0 || need <= (double)left)
        return HD_OK;
    return hd_fail(err, HD_E_NOMEM,
                   "-e %s: two buffers of %d ranks take %s, and %s are free: a smaller -e, or fewer --ranks",
                   hd__bytes_text(a->bench.last, one), ranks, hd__bytes_text((uint64_t)need, all),
                   hd__bytes_text((uint64_t)left, here));
}

/* Runs in a rank that a transport's launcher started with this command. */
static int run_launched_rank(struct bench_arguments *a, const struct transport *transport)
{
    struct hd__launch_env env;
    struct hd_error err = HD_ERROR_INIT;
    int found;
    if (hd__launch_detect(&env, &found, &err) ||
        (!found && hd__launch_check_alone(&err))) { /* not found: the only one */
        fprintf(stderr, "heddle bench: %s\n", err.message);
        return HD__EXIT_REFUSED;
    }
    use_transport(&a->bench, transport);
    return hd__bench_run_launched_rank(&a->bench, found ? env.rank : 0);
}

/* A transport that is ordered by a device's stream moves that device's memory; the others the host's. */
static int32_t find_memory(const struct bench_arguments *a, struct hd__plugins *plugins, struct transport *transports,
                           struct hd_error *err)
{
    int any = a->overlap;
    int32_t rc = HD_OK;
    for (int i = 0; i < a->comms && !rc; i++) {
        struct transport *t = &transports[i];
        const char *name = t->component->name;
        if (!(t->component->ops.comm.caps & HD_COMM_STREAM_ORDERED))
            continue;
        any = 1;
        if (a->overlap || a->tune || t->inside)
            return hd_fail(err, HD_E_INVALID, "%s is ordered by a device's stream: no %s with it", name,
                           a->overlap ? "--overlap"
                           : a->tune  ? "--tune"
                                      : "inside=");
        rc = hd__bench_find(plugins, HD_KIND_DEVICE, a->device ? a->device : "cuda", NULL, 0,
                            (struct hd__arena *)&a->arena, &t->memory_device, &t->memory_settings, err);
        if (!rc && !(t->memory_device->ops.device.caps & HD_DEVICE_STREAMS))
            rc = hd_fail(err, HD_E_INVALID,
                         "%s moves the memory of a device with streams, which %s is not: --device cuda", name,
                         t->memory_device->name);
    }
    return rc || any || !a->device
               ? rc
               : hd_fail(err, HD_E_INVALID,
                         "--device wants --peak, --overlap, or a transport of a device's memory, as --comm nccl");
}

/* Names of columns that are all different: the second shm is "shm (2)". */
static void number_repeats(struct bench_arguments *a)
{
    for (int i = a->comms - 1; i > 0; i--) {
        int n = 1;
        for (int k = 0; k < i; k++)
            n += !strcmp(a->comm[k], a->comm[i]);
        if (n > 1)
            a->comm[i] = hd__arena_format(&a->arena, "%s (%d)", a->comm[i], n);
    }
}

static int32_t prepare(struct bench_arguments *a, struct hd__plugins *plugins, int joined, struct transport *transports,
                       struct hd_error *err)
{
    const char *const files[][2] = {
        {a->html, HD__OUTPUT_MARK}, {a->svg, HD__OUTPUT_MARK}, {a->tune, HD__TUNING_BEGINS}};
    int32_t rc = HD_OK;
    /* before anything is measured; an existing file is kept until it is replaced */
    for (size_t i = 0; i < HD__COUNT(files) && !rc && !joined && hd__bench_is_root(&a->bench); i++)
        rc = files[i][0] ? hd__output_check(files[i][0], files[i][1], err) : HD_OK;
    if (!rc && !joined && !a->peak)
        rc = check_memory(a, err);
    if (!rc)
        rc = hd__plugins_add_default_folders(plugins, err);
    for (int i = 0; i < a->comms && !rc && !a->peak; i++)
        rc = find_transport(a, a->comm[i], plugins, &a->arena, &transports[i], err);
    number_repeats(a);
    if (!rc && a->overlap) /* the device whose products an operation is overlapped with */
        rc = hd__bench_find(plugins, HD_KIND_DEVICE, a->device ? a->device : "cpu", NULL, 0, &a->arena,
                            &a->bench.device, &a->bench.device_settings, err);
    if (!rc && !a->peak)
        rc = find_memory(a, plugins, transports, err);
    return rc ? rc : hd__bench_connect(&a->launch, &a->bench, err);
}

/* Another launcher binds its ranks: then all cores of the machine count. */
static void warn_cores(const struct bench_arguments *a)
{
    const struct hd__bench_external *e = a->bench.external;
    if (!e)
        hd__bench_warn_cores("--ranks", a->bench.ranks, hd__cpu_count());
    else if (!e->local_rank)
        hd__bench_warn_cores("ranks here", e->local_ranks, (int32_t)sysconf(_SC_NPROCESSORS_ONLN));
}

static int measure(struct bench_arguments *a, int32_t joined)
{
    struct transport transports[COMMS_MAX];
    struct hd_error err = HD_ERROR_INIT;
    struct hd__plugins *plugins = hd__plugins_create(hd__store_host_table());
    int code;
    if (prepare(a, plugins, joined >= 0, transports, &err)) {
        fprintf(stderr, "heddle bench: %s\n", err.message);
        code = HD__EXIT_REFUSED;
    } else if (joined >= 0 && joined < a->comms) {
        code = run_launched_rank(a, &transports[joined]);
    } else if (a->peak) {
        code = hd__bench_peak(plugins, a->device ? a->device : "cpu", a->set, a->sets, a->bench.last, a->json);
    } else if (a->tune) {
        warn_cores(a);
        use_transport(&a->bench, &transports[0]);
        code = hd__bench_tune(&a->bench, a->tune, a->any_order);
    } else {
        warn_cores(a);
        code = measure_all(a, transports);
    }
    hd__bench_disconnect(&a->launch, a->bench.timeout);
    hd__plugins_destroy(plugins);
    return code;
}

static int run(int argc, char **argv)
{
    struct bench_arguments a = {.comm = {"shm"}, .comms = 1};
    a.bench = (struct hd__bench){.ranks = 2,
                                 .dtype = HD_F32,
                                 .first = 8,
                                 .factor = 2,
                                 .warmup = 5,
                                 .timeout = 60,
                                 .n_ops = 3,
                                 .ops = {HD__BENCH_ALL_REDUCE, HD__BENCH_REDUCE_SCATTER, HD__BENCH_ALL_GATHER}};
    struct hd_error err = HD_ERROR_INIT;
    for (int i = 1; i < argc; i++)
        a.trains |= !strcmp(argv[i], "--train");
    for (int i = 1; i < argc && a.trains; i++)
        if (find_option(argv[i]) && strcmp(argv[i], "--ranks") && strcmp(argv[i], "--json"))
            return hd__cli_usage_error(&hd__command_bench, "%s does not go with --train", argv[i]);
    if (a.trains)
        return hd__bench_train(argc, argv);
    int32_t joined = hd__bench_launched_index();
    int code = parse(argc, argv, &a);
    if (code == HD__EXIT_DONE && joined < 0 && !a.peak &&
        hd__bench_detect_launch(&a.launch, &a.bench, a.asked, a.overlap, &err)) {
        fprintf(stderr, "heddle bench: %s\n", err.message);
        code = HD__EXIT_REFUSED;
    }
    if (code == HD__EXIT_DONE && a.bench.groups > 1 &&
        (a.bench.ranks % a.bench.groups || a.bench.ranks == a.bench.groups))
        code =
            hd__cli_usage_error(&hd__command_bench, "--groups %d: --ranks %d must be a multiple of it, at least twice",
                                a.bench.groups, a.bench.ranks);
    const char **words = hd__arena_alloc(&a.arena, ((size_t)argc + 2) * sizeof *words);
    words[0] = hd__launch_self_path(hd__arena_alloc(&a.arena, 4096));
    memcpy(words + 1, argv, (size_t)argc * sizeof *words);
    a.bench.words = words;
    a.bench.both = !a.bench.in_place && !a.out_of_place && !a.overlap && !a.tune; /* the modes that need one */
    if (code == HD__EXIT_DONE)
        code = measure(&a, a.peak ? -1 : joined);
    hd__arena_free(&a.arena);
    return code;
}

const struct hd__command hd__command_bench = {
    .name = "bench",
    .usage = "[--comm NAME,...] [--op NAME,...] [--ranks N] [-b SIZE] [-e SIZE] [-f FACTOR]\n"
             "             [-n CALLS] [-w CALLS] [-d DTYPE] [--groups N] [--in-place | --out-of-place] [--plain]\n"
             "             [--set OPTION=VALUE] [--timeout SECONDS] [--json] [--html FILE] [--svg FILE]\n"
             "       heddle bench --overlap [--product SIDE] [--device NAME] (and those above, without --html, --svg)\n"
             "       heddle bench --tune FILE [--any-order] [--comm NAME] [--op NAME,...] [--ranks N] [-b SIZE]\n"
             "             [-e SIZE]\n"
             "       heddle bench --peak [--device NAME] [-e SIZE] [--set OPTION=VALUE] [--json]\n"
             "       heddle bench --train JOB [key=value ...] [--ranks N,...] [--steps N] [--warmup N] [--json]",
    .summary = "measure transports, in the columns of nccl-tests, a device's peak, or a job's steps",
    .help =
        "  --comm NAME,...      transports (shm); several are printed side by side once all are measured\n"
        "                       NAME:OPTION=VALUE:... with options of its own: libfabric:provider=tcp;\n"
        "                       inside=NAME: in two levels, with another inside each machine\n"
        "  --op NAME,...        all_reduce, reduce_scatter, all_gather (these by default), broadcast, reduce,\n"
        "                       all_to_all, sendrecv, barrier\n"
        "  --ranks N            processes, started here (mpi's by mpirun), on cores of their own if there are (2);\n"
        "                       under mpirun, srun or torchrun, on one machine or several: those that they started\n"
        "  --groups N           groups of neighbours that run an operation at the same time; the slowest counts\n"
        "  -b, -e SIZE          first and last size: 8, 64K, 128M (K = 1024); of an operation's larger buffer\n"
        "  -f FACTOR            from one size to the next (2)\n"
        "  -n CALLS, -w CALLS   timed calls a size (by size), warm-up calls (5)\n"
        "  -d DTYPE             " DTYPE_NAMES "\n"
        "  --in-place           only with send and receive buffer in one; --out-of-place: only apart (both)\n"
        "  --overlap            how much of an operation hides behind matrix products; progress is made between\n"
        "                       them, as in training; --product SIDE: their rows and columns (256)\n"
        "  --plain              buffers outside the transport's memory\n"
        "  --set OPTION=VALUE   an option of all transports\n"
        "  --timeout SECONDS    the longest wait (60)\n"
        "  --json               one object with `rows`\n"
        "  --html FILE          writes a page as well: a chart an operation, a line a transport\n"
        "  --svg FILE           writes its charts alone as well: a picture\n"
        "  --tune FILE          measures the algorithms for collectives over send and recv; the best by size go\n"
        "                       into FILE, which a job names: comm: {tune: FILE}\n"
        "  --any-order          with those whose sums follow an order of their own: comm: {sums: any}\n"
        "  --peak               a device instead: its best matrix product by dtype, and its memory's bandwidth\n"
        "  --device NAME        which (cpu), for --overlap too; with --peak -e is an operand's size (256M),\n"
        "                       --set an option of the device; with --comm nccl, whose memory it moves (cuda)\n"
        "  --train JOB          steps of a job, in processes of their own, without checkpoints, evaluation or sinks:\n"
        "                       medians of --steps (20) after --warmup (5); --ranks 1,2,4: strong and weak scaling\n"
        "\n"
        "Every result is checked; wrong elements are counted, and make the command fail.\n"
        "busbw: algbw times 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all, else 1.\n",
    .example = "  heddle bench --comm shm --op all_reduce,all_gather --ranks 2 -b 8 -e 128M -f 4\n",
    .run = run};
