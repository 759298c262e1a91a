/* heddle bench: transports side by side, in the columns of nccl-tests; or a device's peak (bench/peak.c). */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/bench/ranks.h"
#include "cli/command.h"
#include "core/base/dtype.h"
#include "core/base/option.h"
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
    int comms, sets, json, peak, sized, out_of_place, overlap;
    int32_t asked; /* --ranks; 0: not given */
    struct hd__bench_launch launch;
};

struct output {
    const struct bench_arguments *a;
    const char *comm;
    struct hd__bench_table table;
    json_t *rows;
    uint64_t errors;
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

static int parse_count(const char *text, uint32_t least, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end || v < least || v > 1000000000)
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

static int parse_value(struct bench_arguments *a, const char *option, char *value)
{
    struct hd__bench *b = &a->bench;
    uint32_t n = 0;
    char *end;
    if (strcmp(option, "--comm") == 0)
        return (a->comms = split(value, a->comm, COMMS_MAX)) > 0;
    if (strcmp(option, "--op") == 0)
        return parse_ops(value, b);
    if (strcmp(option, "--ranks") == 0)
        return parse_count(value, 1, &n) && n <= 1024 && (a->asked = b->ranks = (int32_t)n) > 0;
    if (strcmp(option, "--groups") == 0)
        return parse_count(value, 1, &n) && n <= 1024 && (b->groups = (int32_t)n) > 0;
    if (strcmp(option, "-b") == 0)
        return parse_size(value, &b->first);
    if (strcmp(option, "-e") == 0)
        return (a->sized = parse_size(value, &b->last));
    if (strcmp(option, "--html") == 0)
        return (a->html = value) != NULL;
    if (strcmp(option, "--svg") == 0)
        return (a->svg = value) != NULL;
    if (strcmp(option, "--tune") == 0)
        return (a->tune = value) != NULL;
    if (strcmp(option, "--product") == 0)
        return parse_count(value, 1, &n) && n <= 32768 && (b->product = (int32_t)n) > 0;
    if (strcmp(option, "--device") == 0)
        return (a->device = value) != NULL;
    if (strcmp(option, "-f") == 0)
        return (b->factor = strtod(value, &end)) > 1 && b->factor <= 1e13 && !*end;
    if (strcmp(option, "-n") == 0)
        return parse_count(value, 1, &b->iterations);
    if (strcmp(option, "-w") == 0)
        return parse_count(value, 0, &b->warmup);
    if (strcmp(option, "-d") == 0)
        return parse_dtype(value, &b->dtype);
    if (strcmp(option, "--timeout") == 0)
        return (b->timeout = strtod(value, &end)) >= 0.01 && b->timeout <= 1e6 && !*end;
    return strchr(value, '=') && a->sets < SETS_MAX && (a->set[a->sets++] = value) != NULL; /* --set */
}

/* The accepted values of an option, for error messages. */
static const char *expected_value(const char *option)
{
    static const struct {
        const char *option, *what;
    } rows[] = {
        {"--comm", "names of transports with commas between them, at most 8: shm,mpi,libfabric:provider=tcp (`heddle "
                   "plugins` lists them)"},
        {"--op", "names with commas between them: all_reduce, reduce_scatter, all_gather, broadcast, reduce, "
                 "all_to_all, sendrecv, barrier"},
        {"--ranks", "a whole number from 1 to 1024"},
        {"--groups", "a whole number from 1 to 1024"},
        {"-b", "a size of a byte or more: 8, 64K, 128M"},
        {"-e", "a size of a byte or more: 8, 64K, 128M"},
        {"-f", "a number above 1"},
        {"-n", "a whole number from 1 up"},
        {"-w", "a whole number from 0 up"},
        {"-d", "one of " DTYPE_NAMES},
        {"--product", "a whole number from 1 to 32768"},
        {"--timeout", "seconds from 0.01 to 1000000"},
        {"--set", "OPTION=VALUE, at most 32 of them"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (strcmp(option, rows[i].option) == 0)
            return rows[i].what;
    return "another value";
}

static int parse(int argc, char **argv, struct bench_arguments *a)
{
    static const char *const of_peak[] = {"--peak", "--device", "-e", "--set", "--json"};
    static const char *const with_value[] = {"--comm", "--op",   "--ranks",  "-b",        "-e",    "-f",
                                             "-n",     "-w",     "-d",       "--timeout", "--set", "--device",
                                             "--html", "--tune", "--groups", "--product", "--svg"};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        int known = 0;
        size_t k;
        if (strcmp(argv[i], "--json") == 0)
            known = a->json = 1;
        else if (strcmp(argv[i], "--in-place") == 0)
            known = a->bench.in_place = 1;
        else if (strcmp(argv[i], "--out-of-place") == 0)
            known = a->out_of_place = 1;
        else if (strcmp(argv[i], "--overlap") == 0)
            known = a->overlap = 1;
        else if (strcmp(argv[i], "--plain") == 0)
            known = a->bench.plain = 1;
        else if (strcmp(argv[i], "--peak") == 0)
            known = a->peak = 1;
        else if (strcmp(argv[i], "--any-order") == 0)
            known = a->any_order = 1;
        for (k = 0; !known && k < HD__COUNT(with_value); k++)
            if (strcmp(argv[i], with_value[k]) == 0) {
                known = 1;
                if (i + 1 == argc)
                    return hd__cli_usage_error(&hd__command_bench, "%s wants a value", argv[i]);
                char *value = hd__arena_strdup(&a->arena, argv[i + 1]);
                if (!parse_value(a, argv[i], value))
                    return hd__cli_usage_error(&hd__command_bench, "%s '%s': wanted %s", argv[i], argv[i + 1],
                                               expected_value(argv[i]));
                i++;
            }
        if (!known)
            return hd__cli_usage_error(&hd__command_bench, "there is no option %s", argv[i]);
        for (k = 0; k < HD__COUNT(of_peak) && strcmp(option, of_peak[k]);)
            k++;
        if (!a->only_transports && k == HD__COUNT(of_peak))
            a->only_transports = option;
    }
    if (a->peak && a->only_transports)
        return hd__cli_usage_error(&hd__command_bench, "%s is for transports, not for --peak", a->only_transports);
    if (!a->peak && !a->overlap && a->device)
        return hd__cli_usage_error(&hd__command_bench, "--device wants --peak or --overlap");
    if (!a->overlap && a->bench.product)
        return hd__cli_usage_error(&hd__command_bench, "--product wants --overlap");
    if (a->tune && (a->html || a->svg || a->json || a->comms > 1))
        return hd__cli_usage_error(&hd__command_bench,
                                   "--tune is of one transport, and writes its file alone: no --html, --svg or --json");
    if (a->overlap && (a->html || a->svg || a->tune))
        return hd__cli_usage_error(&hd__command_bench, "--overlap goes with neither --html, --svg nor --tune");
    if (a->bench.in_place && a->out_of_place)
        return hd__cli_usage_error(&hd__command_bench, "--in-place and --out-of-place: without them both are measured");
    for (uint32_t i = 0; i < a->bench.n_ops && a->bench.in_place; i++)
        if (!hd__bench_has_in_place(a->bench.ops[i]) && a->bench.ops[i] != HD__BENCH_BARRIER)
            return hd__cli_usage_error(&hd__command_bench, "%s has no in-place form",
                                       hd__bench_op_name(a->bench.ops[i]));
    if (a->bench.last < a->bench.first)
        return hd__cli_usage_error(&hd__command_bench, "-e is below -b");
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
        printf("# time: the median over batches of the mean of calls back to back, of the slowest rank;"
               " p99: of single calls\n");
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
    if (b->device) {
        numbers = json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "products", (json_int_t)r->products, "products_us",
                            r->products_us, "alone_us", r->alone_us, "both_us", r->both_us, "exposed_us", r->exposed_us,
                            "hidden_percent", 100 * r->hidden);
        json_object_update(row, numbers);
        json_decref(numbers);
    }
    o->errors += r->errors;
    if (!o->a->json && o->a->comms == 1)
        hd__bench_print_row(&o->table, r->op, row);
    json_array_append_new(o->rows, row);
}

/* ---- transports */

int32_t hd__bench_parse_settings(const struct hd__component *c, const char *const *set, int sets, void *settings,
                                 struct hd__arena *arena, struct hd_error *err)
{
    const char *kind = hd__plugin_kind_name(c->kind);
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

struct transport {
    const struct hd__component *component, *inside;
    void *settings, *inside_settings;
};

/* ":inside=NAME": the transport inside machines, with its defaults; as comm.inside of a job. */
static int32_t find_inside(const struct bench_arguments *a, const char *name, struct hd__plugins *plugins,
                           struct hd__arena *arena, struct transport *out, struct hd_error *err)
{
    int32_t rc;
    if (!a->bench.external)
        return hd_fail(
            err, HD_E_INVALID,
            "inside=%s wants ranks on machines that mpirun, srun or torchrun started them on: here is one machine",
            name);
    if ((rc = hd__plugin_find(plugins, HD_KIND_COMM, name, &out->inside, err)) ||
        (rc = hd__plugin_probe(plugins, out->inside, err)))
        return rc;
    out->inside_settings = hd__arena_alloc(arena, HD__MAX(out->inside->settings_size, (size_t)1));
    return hd__bench_parse_settings(out->inside, NULL, 0, out->inside_settings, arena, err);
}

/* "NAME:OPTION=VALUE:...": options of this transport, applied after those of --set, which are for all. */
static int32_t find_transport(const struct bench_arguments *a, const char *text, struct hd__plugins *plugins,
                              struct hd__arena *arena, struct transport *out, struct hd_error *err)
{
    const char *set[2 * SETS_MAX], *name;
    char *rest = hd__arena_strdup(arena, text);
    int sets = a->sets;
    int32_t rc;
    memcpy(set, a->set, sizeof a->set);
    name = strsep(&rest, ":");
    out->inside = NULL;
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
    if ((rc = hd__plugin_find(plugins, HD_KIND_COMM, name, &out->component, err)) ||
        (rc = hd__plugin_probe(plugins, out->component, err)))
        return rc;
    out->settings = hd__arena_alloc(arena, HD__MAX(out->component->settings_size, (size_t)1));
    return hd__bench_parse_settings(out->component, set, sets, out->settings, arena, err);
}

static void print_json(const struct bench_arguments *a, json_t *rows)
{
    char machine[256];
    hd__bench_machine_text(machine);
    json_t *root = json_pack("{s:s, s:b, s:O}", "machine", machine, "plain", a->bench.plain, "rows", rows);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
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

/* The device whose products an operation is overlapped with. */
static int32_t find_device(struct bench_arguments *a, struct hd__plugins *plugins, struct hd_error *err)
{
    const struct hd__component *c;
    void *settings;
    int32_t rc;
    if ((rc = hd__plugin_find(plugins, HD_KIND_DEVICE, a->device ? a->device : "cpu", &c, err)) ||
        (rc = hd__plugin_probe(plugins, c, err)))
        return rc;
    settings = hd__arena_alloc(&a->arena, HD__MAX(c->settings_size, (size_t)1));
    a->bench.device = c;
    a->bench.device_settings = settings;
    a->bench.product = a->bench.product ? a->bench.product : 256;
    return hd__bench_parse_settings(c, NULL, 0, settings, &a->arena, err);
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
        a->bench.component = transports[i].component;
        a->bench.settings = transports[i].settings;
        a->bench.intra = transports[i].inside;
        a->bench.intra_settings = transports[i].inside_settings;
        code = hd__bench_run(&a->bench, on_row, &o, &err);
    }
    if (code == HD_OK && hd__bench_is_root(&a->bench))
        code = report(a, o.rows, &err);
    json_decref(o.rows);
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
    if (hd__launch_detect(&env, &found, &err)) { /* not found: the only one */
        fprintf(stderr, "heddle bench: %s\n", err.message);
        return HD__EXIT_REFUSED;
    }
    a->bench.component = transport->component;
    a->bench.settings = transport->settings;
    return hd__bench_run_launched_rank(&a->bench, found ? env.rank : 0);
}

static int32_t prepare(struct bench_arguments *a, struct hd__plugins *plugins, int joined, struct transport *transports,
                       struct hd_error *err)
{
    const char *const files[] = {a->html, a->svg, a->tune};
    int32_t rc = HD_OK;
    /* before anything is measured; an existing file is kept until it is replaced */
    for (size_t i = 0; i < HD__COUNT(files) && !rc && !joined && hd__bench_is_root(&a->bench); i++) {
        int why = files[i] ? hd__check_writable(files[i]) : 0;
        if (why)
            rc = hd_fail(err, HD_E_IO, "%s: %s", files[i], strerror(why));
    }
    if (!rc && !joined && !a->peak)
        rc = check_memory(a, err);
    if (!rc)
        rc = hd__plugins_add_default_folders(plugins, err);
    for (int i = 0; i < a->comms && !rc && !a->peak; i++)
        rc = find_transport(a, a->comm[i], plugins, &a->arena, &transports[i], err);
    if (!rc && a->overlap)
        rc = find_device(a, plugins, err);
    return rc ? rc : hd__bench_connect(&a->launch, &a->bench, err);
}

static int tune(struct bench_arguments *a, const struct transport *transport)
{
    a->bench.component = transport->component;
    a->bench.settings = transport->settings;
    a->bench.intra = transport->inside;
    a->bench.intra_settings = transport->inside_settings;
    return hd__bench_tune(&a->bench, a->tune, a->any_order);
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
        code = hd__bench_peak(plugins, a->device ? a->device : "cpu", a->set, a->sets,
                              a->sized ? a->bench.last : 256u << 20, a->json);
    } else {
        code = a->tune ? tune(a, &transports[0]) : measure_all(a, transports);
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
                                 .last = 128u << 20,
                                 .factor = 2,
                                 .warmup = 5,
                                 .timeout = 60,
                                 .n_ops = 3,
                                 .ops = {HD__BENCH_ALL_REDUCE, HD__BENCH_REDUCE_SCATTER, HD__BENCH_ALL_GATHER}};
    struct hd_error err = HD_ERROR_INIT;
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
             "       heddle bench --peak [--device NAME] [-e SIZE] [--set OPTION=VALUE] [--json]",
    .summary = "measure transports, in the columns of nccl-tests, or a device's peak",
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
        "                       --set an option of the device\n"
        "\n"
        "Every result is checked; wrong elements are counted, and make the command fail.\n"
        "busbw: algbw times 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all, else 1.\n",
    .example = "  heddle bench --comm shm --op all_reduce,all_gather --ranks 2 -b 8 -e 128M -f 4\n",
    .run = run,
};
