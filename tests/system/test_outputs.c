/* What the command writes for others to read: metrics.jsonl, the resolved job, and the JSON of explain and check. */
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *object = keep(json_loads(text, 0, &error));
    ck_assert_msg(object != NULL, "not JSON (%s at %d:%d): %.200s", error.text, error.line, error.column, text);
    return object;
}

/* "a.b.c" in nested objects; fails where there is none of this type. */
static json_t *field(json_t *object, const char *path, json_type type)
{
    char copy[128], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *part; object && (part = strsep(&rest, "."));)
        object = json_object_get(object, part);
    ck_assert_msg(object != NULL, "there is no %s", path);
    ck_assert_msg(json_typeof(object) == type || (type == JSON_REAL && json_is_number(object)), "%s is of another type",
                  path);
    return object;
}

static int64_t whole(json_t *object, const char *path)
{
    return json_integer_value(field(object, path, JSON_INTEGER));
}

static double real(json_t *object, const char *path)
{
    return json_number_value(field(object, path, JSON_REAL));
}

/* ---- metrics.jsonl */

enum { LINES = 64 };

/* Without alarms: those of speed come where a machine is busy. */
static int read_lines(const char *job, json_t *line[LINES])
{
    char path[64], *text, *rest;
    int n = 0;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    text = rest = read_file(path);
    ck_assert_msg(text[strlen(text) - 1] == '\n', "the last line has no end");
    for (char *one; (one = strsep(&rest, "\n")) && *one && n < LINES;)
        if (!strstr(one, "\"event\": \"alarm\""))
            line[n++] = parse(one);
    return n;
}

/* Numbers of all ranks. */
static void check_ranks(json_t *row, int ranks)
{
    ck_assert(fabs(real(row, "tokens_per_s_per_rank") * ranks / real(row, "tokens_per_s") - 1) < 1e-4);
    ck_assert(fabs(real(row, "samples_per_s") * 32 / real(row, "tokens_per_s") - 1) < 1e-4);
    ck_assert(real(row, "compute_min_s") > 0 && real(row, "compute_min_s") <= real(row, "compute_median_s"));
    ck_assert(real(row, "compute_median_s") <= real(row, "compute_max_s"));
    ck_assert(real(row, "wait_min_s") >= 0 && real(row, "wait_min_s") <= real(row, "wait_max_s"));
    ck_assert(real(row, "exposed_comm_s") >= real(row, "wait_min_s") * (1 - 1e-5) &&
              real(row, "exposed_comm_s") <= real(row, "wait_max_s") * (1 + 1e-5));
    ck_assert(whole(row, "rss_min_bytes") > 0 && whole(row, "rss_min_bytes") <= whole(row, "rss_median_bytes"));
    ck_assert(whole(row, "rss_median_bytes") <= whole(row, "rss_max_bytes"));
    ck_assert(whole(row, "compute_max_rank") < ranks && whole(row, "rss_max_rank") < ranks);
    ck_assert_int_eq(json_object_get(row, "comm_s_dp_shard") != NULL, ranks > 1);
    if (ranks > 1) /* the only axis */
        ck_assert(fabs(real(row, "comm_s_dp_shard") / real(row, "exposed_comm_s") - 1) < 1e-4);
    else
        ck_assert(real(row, "compute_min_s") == real(row, "compute_max_s") && real(row, "exposed_comm_s") == 0);
}

static void check_row(json_t *row, int64_t step, int64_t arena)
{
    static const char *const names[] = {"step",
                                        "loss",
                                        "val_loss",
                                        "grad_norm",
                                        "lr",
                                        "epoch",
                                        "tokens",
                                        "tokens_per_s",
                                        "step_s",
                                        "comm_s",
                                        "mfu",
                                        "arena_bytes",
                                        "rss_bytes",
                                        "run",
                                        "data_wait_s",
                                        "tokens_per_s_per_rank",
                                        "samples_per_s",
                                        "exposed_comm_s",
                                        "compute_min_s",
                                        "compute_median_s",
                                        "compute_max_s",
                                        "compute_max_rank",
                                        "wait_min_s",
                                        "wait_median_s",
                                        "wait_max_s",
                                        "wait_max_rank",
                                        "rss_min_bytes",
                                        "rss_median_bytes",
                                        "rss_max_bytes",
                                        "rss_max_rank",
                                        "comm_s_dp_shard"};
    const char *key;
    json_t *value;
    ck_assert_int_eq(whole(row, "step"), step);
    ck_assert_int_eq(whole(row, "tokens"), step * 8 * 32);
    ck_assert(real(row, "loss") > 0 && real(row, "loss") < 7); /* ln 256 = 5.5 is where it starts */
    ck_assert(real(row, "grad_norm") > 0);
    ck_assert(real(row, "step_s") > 0 && real(row, "comm_s") >= 0 && real(row, "comm_s") <= real(row, "step_s"));
    ck_assert(fabs(real(row, "tokens_per_s") * real(row, "step_s") / (8 * 32) - 1) < 1e-4);
    ck_assert(real(row, "data_wait_s") >= 0 && real(row, "data_wait_s") <= real(row, "step_s"));
    ck_assert(real(row, "mfu") >= 0);
    double trained = 0.9 * (double)strlen(read_file("corpus.txt")); /* val_fraction: 0.1 */
    ck_assert(fabs(real(row, "epoch") * trained / (double)whole(row, "tokens") - 1) < 1e-3);
    ck_assert_int_eq(whole(row, "arena_bytes"), arena);
    ck_assert_int_gt(whole(row, "rss_bytes"), arena);
    json_object_foreach(row, key, value)
    {
        size_t n = 0;
        while (n < HD__COUNT(names) && strcmp(names[n], key))
            n++;
        ck_assert_msg(n < HD__COUNT(names), "%s is not a documented field", key);
    }
}

/* 2 layers of hidden 64 with 4 heads, 2 kv heads and ffn 128; embedding and head are two. */
#define LLAMA_PARAMETERS (2 * 256 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128))

static void metrics_of(int ranks)
{
    json_t *line[LINES];
    int64_t arena;
    int n;
    struct command *c =
        command_run("train llama.yaml job.name=fields mesh.dp=%d schedule.warmup=4 data.val_fraction=0.1 "
                    "eval.every=10 eval.batches=2 %s",
                    ranks, ranks > 1 ? "watch.straggler=0" : ""); /* no line more on a busy machine */
    expect_code(c, 0);
    n = read_lines("fields", line);
    ck_assert_int_eq(n, 21);
    ck_assert_str_eq(json_string_value(field(line[0], "event", JSON_STRING)), "start");
    ck_assert_int_eq(whole(line[0], "parameters"), LLAMA_PARAMETERS);
    ck_assert_int_eq(whole(line[0], "mesh.dp_shard"), ranks);
    ck_assert_int_eq(whole(line[0], "job.data.batch"), 8);
    arena = whole(line[0], "plan.arena_bytes");
    for (int i = 1; i < n; i++) {
        check_row(line[i], i, arena);
        check_ranks(line[i], ranks);
        ck_assert(fabs(real(line[i], "lr") / (1e-3 * HD__MIN(1, i / 4.0)) - 1) < 1e-6);
        ck_assert_int_eq(json_object_get(line[i], "val_loss") != NULL, i % 10 == 0);
    }
    ck_assert(real(line[20], "val_loss") < real(line[10], "val_loss"));
    c = command_run("check llama.yaml mesh.dp=%d --json", ranks); /* the plan that was made without running */
    ck_assert_int_eq(whole(parse(c->out), "arena_bytes"), arena);
}

START_TEST(metrics_fields)
{
    metrics_of(1);
    metrics_of(2);
}
END_TEST

/* ---- a hook that heddle knows nothing of: it sees every operation, and what it holds back comes all the same */

static int64_t perf_calls(const char *path)
{
    json_t *rows = field(parse(read_file(path)), "rows", JSON_ARRAY), *row;
    int64_t calls = 0;
    size_t i;
    json_array_foreach(rows, i, row) calls += whole(row, "calls");
    return calls;
}

START_TEST(hook_of_a_third_party)
{
    json_t *with[LINES], *without[LINES];
    char text[128], path[64];
    struct command *c = command_run("train llama.yaml mesh.dp=2 job.steps=6 job.name=unhooked");
    expect_code(c, 0);
    c = command_run("train llama.yaml mesh.dp=2 job.steps=6 job.name=hooked plugins.path=" ASYNC
                    " comm.hooks=[{\"use\":\"count\",\"hold\":3},\"perf\"]");
    expect_code(c, 0);
    ck_assert_int_eq(read_lines("unhooked", without), 7);
    ck_assert_int_eq(read_lines("hooked", with), 7);
    for (int i = 1; i < 7; i++)
        ck_assert_double_eq(real(with[i], "loss"), real(without[i], "loss"));
    for (int rank = 0; rank < 2; rank++) {
        snprintf(path, sizeof path, "runs/hooked/perf-shm-rank%d.json", rank);
        long long n = perf_calls(path);
        ck_assert_int_gt(n, 12);
        snprintf(text, sizeof text, "hook-count: rank %d, comm-shm: %lld began, %lld ended, 0 failed, %lld held\n",
                 rank, n, n, n / 3);
        ck_assert_msg(strstr(c->out, text) != NULL, "'%s' is not in: %s", text, c->out);
    }
    c = command_run("train llama.yaml mesh.dp=2 plugins.path=" ASYNC " comm.hooks=[\"counts\"]");
    expect_code(c, 2);
    ck_assert_msg(strstr(c->err, "there is no plugin hook-counts: did you mean hook-count?") != NULL, "%s", c->err);
    c = command_run("check llama.yaml mesh.dp=2 plugins.path=" ASYNC " comm.hooks=[{\"use\":\"count\",\"holds\":3}]");
    expect_code(c, 2);
    ck_assert_msg(strstr(c->err, "comm.hooks.0: unknown key holds; did you mean hold?") != NULL, "%s", c->err);
}
END_TEST

/* The start says each source of a mix with its share; of many, those that are read most often. */
START_TEST(shares_of_the_data)
{
    struct hd__text many = {0};
    ck_assert_int_eq(system("for i in 1 2 3 4 5 6 7; do head -c ${i}601 corpus.txt >part$i.txt; done"), 0);
    struct command *c =
        command_run("train llama.yaml job.name=shares job.steps=5 data.train=[\"part1.txt\",\"part3.txt\"]");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "\ndata: 5,202 tokens, seen 0.247 times in all steps\n"), "it said: %s", c->out);
    c = command_run("train llama.yaml job.name=shares job.steps=5 "
                    "data.train=[{\"path\":\"part3.txt\",\"weight\":3},{\"path\":\"part1.txt\",\"weight\":1}]");
    expect_code(c, 0); /* 40 sequences of 32 tokens, of 112 and 50 */
    ck_assert_msg(
        strstr(c->out, "\ndata: 5,202 tokens: part3.txt 75 % (seen 0.268 times), part1.txt 25 % (seen 0.2 times)\n"),
        "it said: %s", c->out);
    c = command_run("train llama.yaml job.name=shares job.steps=1 data.train=[\"part3.txt\",\"part1.txt\"] "
                    "data.val_fraction=0.4");
    ck_assert_msg(strstr(c->err, "held out, and not trained on at all: part1.txt\n"), "it said: %s", c->err);
    expect_says(
        command_run(
            "train llama.yaml --dry-run data.train=[\"part3.txt\",\"part1.txt\",\"part2.txt\"] data.val_fraction=0.6"),
        "held out, and not trained on at all: part1.txt and 1 more file\n");
    for (int i = 1; i <= 7; i++)
        hd__text_add(&many, "%s{\"path\":\"part%d.txt\",\"weight\":1}", i > 1 ? "," : "", i);
    c = command_run("train llama.yaml job.name=shares job.steps=7 data.train=[%s]", many.at);
    hd__text_free(&many);
    expect_code(c, 0);
    ck_assert_msg(
        strstr(c->out, " tokens: part1.txt 14.3 % (seen 0.16 times), part2.txt 14.3 % (seen 0.0988 times), ") &&
            strstr(c->out, " times), part5.txt 14.3 % (seen 0.0457 times), 2 more less often\n"),
        "it said: %s", c->out);
}
END_TEST

/* Measured times of a run without a pipeline, and of one with it, split another. */
START_TEST(block_times)
{
    static const char *const of[] = {"", "mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]"};
    for (int i = 0; i < 2; i++) {
        expect_code(
            command_run("train llama.yaml job.name=blocks job.steps=4 metrics.blocks=blocks%d.csv %s", i, of[i]), 0);
        expect_code(command_run("check llama.yaml mesh.pp=2 "
                                "strategies=[{\"use\":\"3d\",\"split\":\"blocks%d.csv\"},{\"use\":\"zero\"}]",
                                i),
                    0);
        struct command *c = command_run("check llama.yaml mesh.pp=2 model.layers=3 "
                                        "strategies=[{\"use\":\"3d\",\"split\":\"blocks%d.csv\"},{\"use\":\"zero\"}]",
                                        i);
        expect_code(c, 2);
        ck_assert_msg(strstr(c->err, "it is of another model") != NULL, "%s", c->err);
    }
}
END_TEST

/* Rows of the table: those that a llama must have are there, calls are whole, and the parts make the whole. */
START_TEST(profile_table)
{
    static const char *const must[] = {"F einsum 64x128x64", "B attention_grad", "W einsum 128x64x64",
                                       "F xent_head",        "O adamw",          "between instructions"};
    struct command *c = command_run("train llama.yaml job.name=profile job.steps=4 metrics.profile=true");
    char *table = strstr(c->out, "profile of rank 0: 2 steps of "), *rest, *one;
    double step, share, ms, calls, sum = 0, shares = 0;
    expect_code(c, 0);
    ck_assert_msg(table != NULL, "no table in: %s", c->out);
    for (size_t i = 0; i < HD__COUNT(must); i++)
        ck_assert_msg(strstr(table, must[i]) != NULL, "no row %s in: %s", must[i], table);
    ck_assert_int_eq(sscanf(table, "profile of rank 0: 2 steps of %lf ms", &step), 1);
    rest = strchr(strchr(table, '\n') + 1, '\n') + 1;
    while ((one = strsep(&rest, "\n")) && *one && strncmp(one, "trained to ", 11)) {
        ck_assert_int_eq(sscanf(one, "%lf%% %lf %lf", &share, &ms, &calls), 3);
        ck_assert(fabs(calls - round(calls)) < 1e-9);
        sum += ms;
        shares += share;
    }
    ck_assert(fabs(sum / step - 1) < 0.02);
    ck_assert(fabs(shares - 100) < 2.5); /* rounded to a tenth, some 30 rows */
    c = command_run("train llama.yaml job.name=profile job.steps=4");
    ck_assert_ptr_null(strstr(c->out, "profile of"));
}
END_TEST

/* ---- the roofline */

struct roofline {
    double all, products, flops, flop_rate, other, bytes, byte_rate, comm, step, ratio;
};

/* Its two lines: the parts make the whole, and the ratio is that of what stands beside it. */
static struct roofline read_roofline(const char *out, const char *rates)
{
    struct roofline r;
    const char *line = strstr(out, "roofline of rank 0: "), *next;
    ck_assert_msg(line != NULL, "no roofline in: %s", out);
    ck_assert_int_eq(
        sscanf(line,
               "roofline of rank 0: %lf ms a step, by rates %*[^\n] = products %lf (%lf GFLOP at %lf GFLOP/s) + "
               "other %lf (%lf GB at %lf GB/s) + exposed comm %lf",
               &r.all, &r.products, &r.flops, &r.flop_rate, &r.other, &r.bytes, &r.byte_rate, &r.comm),
        8);
    next = strchr(strchr(line, '\n') + 1, '\n');
    ck_assert_msg(!strncmp(strstr(line, ", by rates ") + 11, rates, strlen(rates)), "%s", line);
    ck_assert_int_eq(sscanf(next, " a step of %lf ms takes %lf times the roofline", &r.step, &r.ratio), 2);
    ck_assert_double_eq_tol(r.products + r.other + r.comm, r.all, 0.002);
    ck_assert_double_eq_tol(r.step / r.all, r.ratio, 0.006 + 0.002 * r.ratio / r.all);
    ck_assert(r.products > 0 && r.other > 0 && r.flop_rate > 0 && r.byte_rate > 0);
    return r;
}

/* The event is what was printed, and its FLOPs are those of the program. */
static json_t *check_event(const char *job, const struct roofline *r, const char *words)
{
    static char path[64];
    json_t *event = NULL, *line;
    struct command *c = command_run("explain llama.yaml --json %s", words);
    char text[4096];
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(text, sizeof text, file))
        if (strstr(text, "\"event\": \"roofline\""))
            event = keep(json_loads(text, 0, NULL));
    fclose(file);
    ck_assert_msg(event != NULL, "no event in %s", path);
    const struct {
        const char *key;
        double factor, printed, within;
    } rows[] = {{"roofline_s", 1e3, r->all, 6e-4},
                {"products_s", 1e3, r->products, 6e-4},
                {"other_s", 1e3, r->other, 6e-4},
                {"exposed_comm_s", 1e3, r->comm, 6e-4},
                {"step_s", 1e3, r->step, 6e-4},
                {"roofline_ratio", 1, r->ratio, 6e-3},
                {"flops", 1e-9, r->flops, 6e-3},
                {"bytes", 1e-9, r->bytes, 6e-3},
                {"product_flops_per_s", 1e-9, r->flop_rate, 6e-2},
                {"copy_bytes_per_s", 1e-9, r->byte_rate, 6e-2}};
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        ck_assert_msg(fabs(rows[i].factor * json_number_value(json_object_get(event, rows[i].key)) - rows[i].printed) <
                          rows[i].within,
                      "%s is not the %g that was printed", rows[i].key, rows[i].printed);
    line = keep(json_loads(c->out, 0, NULL));
    ck_assert_double_eq(json_number_value(json_object_get(json_object_get(line, "totals"), "flops")),
                        json_number_value(json_object_get(event, "flops")));
    return event;
}

static double of_event(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    ck_assert_msg(json_is_number(value), "%s is not a number", key);
    return json_number_value(value);
}

START_TEST(roofline_of_a_profile)
{
    struct command *c = command_run("train llama.yaml job.name=roof job.steps=4 metrics.profile=true");
    expect_code(c, 0);
    struct roofline r = read_roofline(c->out, "measured at the start\n");
    json_t *event = check_event("roof", &r, "");
    double products, other, rest, all, sum = 0, column;
    const char *line = strstr(c->out, "the distance of ");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(
        sscanf(line,
               "the distance of %lf ms: products %lf, other %lf, between instructions and in communication "
               "calls %lf",
               &all, &products, &other, &rest),
        4);
    ck_assert_double_eq_tol(all, r.step - r.all, 0.002);
    ck_assert_double_eq_tol(products + other + rest, all, 0.002);
    const json_t *distance = json_object_get(event, "distance");
    ck_assert_double_eq_tol(1e3 * of_event(distance, "products_s"), products, 6e-4);
    ck_assert_double_eq_tol(1e3 * of_event(distance, "other_s"), other, 6e-4);
    ck_assert_double_eq_tol(1e3 * of_event(distance, "rest_s"), rest, 6e-4);
    ck_assert_double_eq(of_event(event, "exposed_comm_s"), 0);
    double least = of_event(event, "flops") / of_event(event, "product_flops_per_s");
    /* Equal where no product is bound by memory, but for three numbers written with 9 digits (5e-9 each, at most). */
    ck_assert(of_event(event, "products_s") >= least * (1 - 2e-8));
    ck_assert(fabs(of_event(event, "other_s") / of_event(event, "bytes") * of_event(event, "copy_bytes_per_s") - 1) <
              1e-6);
    char *rest_of = strstr(c->out, " roofline  instruction\n"), *one;
    ck_assert_ptr_nonnull(rest_of); /* the column: all rows together are the roofline */
    rest_of = strchr(rest_of, '\n') + 1;
    while ((one = strsep(&rest_of, "\n")) && *one) {
        ck_assert_int_eq(sscanf(one, "%*f%% %*f %*f %*f %*s %*s %lf", &column) >= 0, 1);
        sum += sscanf(one, "%*f%% %*f %*f %*f %*s %*s %lf", &column) == 1 ? column : 0;
    }
    ck_assert_double_eq_tol(sum, r.products + r.other, 0.03); /* some 30 rows, rounded */
}
END_TEST

/* By metrics.roofline, of two ranks; by the rates of a machine file; and not where nobody asks. */
START_TEST(roofline_of_rates)
{
    struct command *c = command_run("train llama.yaml job.name=roof2 job.steps=4 metrics.roofline=true mesh.dp=2");
    expect_code(c, 0);
    struct roofline r = read_roofline(c->out, "measured at the start\n");
    json_t *event = check_event("roof2", &r, "mesh.dp=2");
    ck_assert(of_event(event, "exposed_comm_s") > 0);
    ck_assert_ptr_null(json_object_get(event, "distance"));
    ck_assert_ptr_null(strstr(c->out, "the distance of"));
    c = command_run("train llama.yaml job.name=roof3 job.steps=4 --machine cpu");
    expect_code(c, 0);
    r = read_roofline(c->out, "of cpu\n");
    event = check_event("roof3", &r, "");
    ck_assert_double_eq_tol(of_event(event, "product_flops_per_s"), 100e9 * 0.9, 1); /* machines/cpu.yaml */
    ck_assert_double_eq_tol(of_event(event, "copy_bytes_per_s"), 10e9 * 0.8, 1);
    write_file("slow.yaml", "name: slow\ndevice: cpu\nmemory: 1GB\nbandwidth: 1e8\npeak_fp32: 1e8\n"
                            "levels: [{name: shm, bandwidth: 1e9}]\n");
    c = command_run("train llama.yaml job.name=roof5 job.steps=4 --machine slow.yaml");
    ck_assert(read_roofline(c->out, "of slow\n").ratio < 0.95);
    ck_assert_ptr_nonnull(strstr(c->out, " times the roofline: its rates are below what ran"));
    c = command_run("train llama.yaml job.name=roof4 job.steps=4");
    expect_code(c, 0);
    ck_assert_ptr_null(strstr(c->out, "roofline"));
    ck_assert_int_ne(system("grep -q '\"event\": *\"roofline\"' runs/roof4/metrics.jsonl"), 0);
    c = command_run("explain llama.yaml --timeline --rates flops=2e9,memory=3e9");
    expect_code(c, 0);
    r = read_roofline(c->out, "of the estimate\n");
    ck_assert_double_eq(r.flop_rate, 2);
    ck_assert_double_eq(r.byte_rate, 3);
    ck_assert(r.ratio >= 1); /* the same rates, and a constant for each instruction */
}
END_TEST

START_TEST(metrics_every)
{
    static struct curve all, some;
    train(&all, "every1", "llama.yaml");
    train(&some, "every7", "llama.yaml metrics.every=7");
    ck_assert_int_eq(some.n, 3); /* and the last */
    for (int i = 0; i < 3; i++) {
        int64_t step = i < 2 ? 7 * (i + 1) : 20;
        ck_assert_int_eq(some.step[i], step);
        ck_assert_str_eq(some.text[i], all.text[step - 1]);
    }
    json_t *line[LINES]; /* seconds of its step, however many there were since the row before */
    train(&some, "every999",
          "llama.yaml job.steps=999 metrics.every=999 model.layers=1 model.hidden=16 data.seq_len=8");
    ck_assert_int_eq(read_lines("every999", line), 2);
    ck_assert(real(line[1], "data_wait_s") <= real(line[1], "step_s"));
    train(&some, "every7", "llama.yaml job.steps=3"); /* a fresh run has a file of its own */
    ck_assert_int_eq(some.n, 3);
    ck_assert_int_eq(some.step[0], 1);
}
END_TEST

/* What takes no line is refused before the first step. Only rank 0 opens the metrics: the others do not begin before
 * it has. */
START_TEST(metrics_nowhere)
{
    for (int dp = 1; dp <= 2; dp++) {
        struct command *c = command_run("train llama.yaml metrics.jsonl=/dev/full mesh.dp=%d", dp);
        expect_code(c, 2);
        expect_says(c, "metrics.jsonl: /dev/full cannot be written: No space left on device");
        c = command_run("train llama.yaml metrics.jsonl=. mesh.dp=%d", dp);
        expect_code(c, 2);
        expect_says(c, "metrics.jsonl: .: Is a directory");
        ck_assert_msg(!strstr(c->err, "rank 1") && !strstr(c->err, "report"), "it said:\n%s", c->err);
        c = command_run("train llama.yaml metrics.jsonl=/sys/nowhere/deeper/m.jsonl mesh.dp=%d",
                        dp); /* no folder can be made there: why? */
        expect_code(c, 2);
        ck_assert_msg(strstr(c->err, "/sys/nowhere/deeper/m.jsonl: ") && !strstr(c->err, "No such file"),
                      "it said:\n%s", c->err);
    }
}
END_TEST

/* A command that cannot print its result fails; a run's results are its steps and checkpoints, so it only warns. */
START_TEST(lost_output)
{
    static const struct {
        const char *command;
        int code;
    } rows[] = {{"explain llama.yaml", 1},
                {"train llama.yaml job.steps=1 job.name=lost", 0},
                {"train llama.yaml job.steps=1 job.name=lost mesh.dp=2 launch.restarts=1", 0},
                {"test optim-sgd", 1}};
    static const char *const lost[][2] = {{">/dev/full", "No space left"}, {">&-", "Bad file descriptor"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i].command);
        expect_code(c, 0);
        for (size_t k = 0; k < HD__COUNT(lost); k++) {
            int status = system(keep(hd__format(HEDDLE " %s 2>lost.txt %s", rows[i].command, lost[k][0])));
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == rows[i].code, "%s: %x", rows[i].command,
                          (unsigned)status);
            ck_assert_ptr_nonnull(
                strstr(read_file("lost.txt"), keep(hd__format("what it prints could not be written: %s", lost[k][1]))));
        }
    }
    /* A socket of the rendezvous is not given the number of a closed one, which messages go to. */
    ck_assert_int_eq(system(HEDDLE " train llama.yaml job.steps=1 job.name=lost mesh.dp=2 <&- >&- 2>&-"), 0);
}
END_TEST

/* JSON is UTF-8: what a file's name has besides is '?' there, and takes nothing else with it. */
START_TEST(names_of_bytes)
{
    ck_assert_int_eq(mkdir("p\xff", 0700), 0);
    write_file("p\xff/heddle-optim-odd\xff.so", "no library");
    ck_assert_int_eq(setenv("HEDDLE_PLUGIN_PATH", "p\xff", 1), 0);
    struct command *c = command_run("plugins --json");
    ck_assert_msg(strstr(c->out, "\"name\": \"odd?\"") && strstr(c->out, "\"path\": \"p?/heddle-optim-odd?.so\""),
                  "it printed:\n%s", c->out);
    c = command_run("doctor --json");
    ck_assert_msg(strstr(c->out, "\"object\": \"optim-odd?\""), "it printed:\n%s", c->out);
    expect_code(command_run("train llama.yaml job.steps=1 job.name=bytes checkpoint.dir=c\xff"), 0);
    ck_assert_ptr_nonnull(strstr(read_file("runs/bytes/metrics.jsonl"), "\"dir\":\"c?\""));
}
END_TEST

/* Commands replace what they wrote, and nothing else. */
START_TEST(foreign_files)
{
    static const struct {
        const char *command, *says;
        int times; /* a second run replaces what the first has written */
    } rows[] = {
        {"explain llama.yaml --timeline %s.svg", "%s.svg is there, and heddle did not write it", 2},
        {"explain llama.yaml --timeline %s.json", "%s.json is there, and heddle did not write it", 2},
        {"train llama.yaml job.steps=3 metrics.blocks=%s.csv", "%s.csv is there, and heddle did not write it", 2},
        {"train llama.yaml job.steps=3 metrics.jsonl=%s.jsonl", "%s.jsonl: its first line does not start a run", 1},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        char command[128], says[128], path[32], link[32];
        const char *suffix = strrchr(rows[i].command, '.');
        snprintf(command, sizeof command, rows[i].command, "foreign");
        snprintf(says, sizeof says, rows[i].says, "foreign");
        snprintf(path, sizeof path, "foreign%s", suffix);
        write_file(path, "precious\n");
        struct command *c = command_run("%s", command);
        expect_code(c, 2);
        expect_says(c, says);
        ck_assert_str_eq(read_file(path), "precious\n");
        snprintf(link, sizeof link, "link%s", suffix);
        unlink(link);
        ck_assert_int_eq(symlink(path, link), 0);
        snprintf(command, sizeof command, rows[i].command, "link");
        c = command_run("%s", command);
        expect_code(c, 2);
        expect_says(c, "a symbolic link: name the file itself");
        ck_assert_str_eq(read_file(path), "precious\n");
        ck_assert_int_eq(unlink(path), 0);
        snprintf(command, sizeof command, rows[i].command, "foreign");
        for (int n = 0; n < rows[i].times; n++)
            expect_code(command_run("%s", command), 0);
    }
}
END_TEST

START_TEST(foreign_models)
{
    static const char *const names[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    expect_code(command_run("train llama.yaml job.name=model job.steps=2 checkpoint={}"), 0);
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        char path[64], says[160];
        ck_assert_int_eq(mkdir("folder", 0777), 0);
        snprintf(path, sizeof path, "folder/%s", names[i]);
        snprintf(says, sizeof says, "--to folder: %s is there, and an export overwrites nothing", path);
        write_file(path, "{\"of\": \"another model\"}");
        struct command *c = command_run("ckpt export llama.yaml job.name=model checkpoint={} --to folder");
        expect_code(c, 2);
        expect_says(c, says);
        ck_assert_str_eq(read_file(path), "{\"of\": \"another model\"}");
        ck_assert_int_eq(unlink(path), 0);
        ck_assert_int_eq(rmdir("folder"), 0); /* nothing else was made */
    }
    write_file("precious", "a file");
    struct command *c = command_run("ckpt export llama.yaml job.name=model checkpoint={} --to precious");
    expect_code(c, 2);
    expect_says(c, "--to precious: Not a directory");
    for (int again = 0; again < 2; again++)
        expect_code(command_run("ckpt export llama.yaml job.name=model checkpoint={} --to new/folder"), again ? 2 : 0);
}
END_TEST

/* All that is to be opened is looked at before the metrics of an earlier run are set aside. */
START_TEST(refused_sink_leaves_metrics)
{
    write_file("precious", "a file");
    expect_code(command_run("train llama.yaml job.name=kept2 job.steps=2"), 0);
    const char *before = read_file("runs/kept2/metrics.jsonl");
    struct command *c =
        command_run("train llama.yaml job.name=kept2 metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"precious\"}]");
    expect_code(c, 2);
    expect_says(c, "metrics.sinks.0: precious/");
    ck_assert_str_eq(read_file("runs/kept2/metrics.jsonl"), before);
    ck_assert_int_eq(access("runs/kept2/metrics.jsonl.1", F_OK), -1);
}
END_TEST

/* Nothing that is refused touches what an earlier run wrote. */
START_TEST(refused_leaves_metrics)
{
    static struct curve before, after;
    train(&before, "kept", "llama.yaml");
    expect_code(command_run("train llama.yaml job.name=kept data.train=missing.txt"), 2);
    struct command *dry = command_run("train llama.yaml job.name=kept --dry-run");
    expect_code(dry, 0);
    ck_assert_msg(!strncmp(dry->out, "ready: 1 rank, arena ", 21), "it said: %s", dry->out);
    expect_code(command_run("train llama.yaml job.name=kept --print-config"), 0);
    curve_read(&after, "kept");
    expect_same_bits(&before, &after);
}
END_TEST

/* The data are overwritten, of the same size, and the metrics removed, or rotated, while a job runs. */
START_TEST(changed_below_a_job)
{
    static const char *const rows[][2] = {
        {"rm", "runs/below/metrics.jsonl was removed: its lines are in no file from now on"},
        {"truncate -s 0", "runs/below/metrics.jsonl was truncated by another process: its lines so far are not in it"},
        {"mv -t .", "runs/below/metrics.jsonl was renamed: lines go on into the renamed file until the job starts"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        ck_assert_int_eq(system("rm -rf runs/below && cp corpus.txt below.txt"), 0);
        struct command *c =
            command_start(NULL, "train llama.yaml job.name=below data.train=below.txt job.steps=100000");
        curve_wait("below", 5);
        ck_assert_int_eq(system(keep(hd__format("tr a-z b-za <corpus.txt | dd of=below.txt conv=notrunc status=none && "
                                                "touch below.txt && %s runs/below/metrics.jsonl",
                                                rows[i][0]))),
                         0);
        usleep(300000);
        kill(c->pid, SIGTERM);
        command_wait(c, 60);
        expect_code(c, 3);
        expect_says(c, "below.txt was changed while the job reads it (by step ");
        expect_says(c, rows[i][1]);
    }
}
END_TEST

/* --dry-run says what a run would say of the checkpoint that it goes on from. */
START_TEST(dry_resumes)
{
    expect_code(command_run("train llama.yaml job.name=done job.steps=2 checkpoint={}"), 0);
    struct command *c = command_run("train llama.yaml job.name=done job.steps=2 checkpoint={} --dry-run");
    ck_assert_str_eq(c->out, "the job is finished: its checkpoint is at step 2 of 2; nothing is left to train\n");
    c = command_run("train llama.yaml job.name=done job.steps=3 checkpoint={} model.rope_theta=5e5 --dry-run");
    expect_code(c, 0);
    ck_assert_int_eq(system("cp -r runs/done/checkpoints/step-00000002 runs/done/checkpoints/step-3"), 0);
    expect_says(command_run("train llama.yaml job.name=done job.steps=3 checkpoint={} --dry-run"),
                "warning: step-3 is passed over: a checkpoint of this step is called step-00000003");
    expect_says(c, "model.rope_theta is 500000.0 and was 10000.0 when checkpoint step-00000002 was saved");
    ck_assert_int_eq(strncmp(c->out, "ready: ", 7), 0);
}
END_TEST

/* ---- the resolved job */

/* Without the comments that name the origins. */
static char *without_origins(const char *text)
{
    char *out = keep(hd__strdup(text)), *to = out;
    for (const char *s = text; *s; s++) {
        if (*s == '#')
            s += strcspn(s, "\n");
        while (to > out && to[-1] == ' ' && *s == '\n')
            to--;
        *to++ = *s;
    }
    *to = 0;
    return out;
}

#define UNUSUAL                                                                                         \
    "job.seed=7 optimizer.lr=2.5e-3 optimizer.betas=[0.8,0.99] schedule.kind=cosine schedule.warmup=3 " \
    "data.shuffle=false "

START_TEST(resolved_job_is_a_job)
{
    static struct curve given, resolved, logged;
    static const char *const meshes[] = {"", "mesh.dp=2 strategies.zero.stage=3 strategies.zero.bucket=40kB"};
    for (size_t m = 0; m < HD__COUNT(meshes); m++) {
        struct command *first = command_run("train llama.yaml job.name=given --print-config " UNUSUAL "%s", meshes[m]),
                       *second;
        json_t *line[LINES];
        expect_code(first, 0);
        ck_assert_msg(strstr(first->out, "# command line") && strstr(first->out, "# llama.yaml:3:") &&
                          strstr(first->out, "# default"),
                      "origins are missing:\n%s", first->out);
        write_file("resolved.yaml", first->out);
        second = command_run("train resolved.yaml --print-config");
        ck_assert_str_eq(without_origins(first->out), without_origins(second->out));
        train(&given, "given", "llama.yaml " UNUSUAL "%s", meshes[m]);
        read_lines("given", line);
        train(&resolved, "resolved", "resolved.yaml metrics.jsonl=runs/resolved/metrics.jsonl");
        expect_same_bits(&given, &resolved);
        write_file("logged.yaml", keep(json_dumps(json_object_get(line[0], "job"), 0))); /* JSON is YAML */
        train(&logged, "logged", "logged.yaml metrics.jsonl=runs/logged/metrics.jsonl");
        expect_same_bits(&given, &logged);
    }
}
END_TEST

/* ---- explain and check */

static void check_tensor(json_t *t)
{
    json_t *dims = field(t, "dims", JSON_ARRAY), *shape = field(t, "shape", JSON_ARRAY);
    int64_t bytes = 1;
    field(t, "name", JSON_STRING);
    field(t, "dtype", JSON_STRING);
    field(t, "shard", JSON_OBJECT);
    field(t, "partial", JSON_ARRAY);
    ck_assert_int_eq(json_array_size(dims), json_array_size(shape));
    ck_assert_int_eq(json_array_size(field(t, "start", JSON_ARRAY)), json_array_size(shape));
    for (size_t d = 0; d < json_array_size(shape); d++)
        bytes *= json_integer_value(json_array_get(shape, d));
    ck_assert(whole(t, "bytes") >= bytes); /* one to eight bytes an element */
    ck_assert(whole(t, "bytes") <= 8 * bytes);
    ck_assert_int_ge(whole(t, "offset"), 0);
    ck_assert(json_is_boolean(json_object_get(t, "persistent")));
}

/* A wait's number is one of an asynchronous instruction before it. */
static void check_instruction(json_t *list, size_t at)
{
    json_t *i = json_array_get(list, at), *t;
    const char *stream = json_string_value(field(i, "stream", JSON_STRING)),
               *phase = json_string_value(field(i, "phase", JSON_STRING));
    size_t k;
    ck_assert_int_eq(whole(i, "n"), at);
    ck_assert_msg(strchr("FRBWO", phase[0]) && !phase[1], "phase %s", phase);
    field(i, "block", JSON_STRING);
    if (!strcmp(json_string_value(field(i, "op", JSON_STRING)), "wait")) {
        int64_t on = whole(i, "waits_for");
        ck_assert(on < (int64_t)at);
        stream = json_string_value(field(json_array_get(list, (size_t)on), "stream", JSON_STRING));
        ck_assert_str_ne(stream, "compute");
        return;
    }
    if (strcmp(stream, "compute"))
        ck_assert_int_gt(json_array_size(field(i, "axes", JSON_ARRAY)), 0);
    ck_assert(real(i, "flops") >= 0 && real(i, "sent_bytes") >= 0);
    json_array_foreach(field(i, "out", JSON_ARRAY), k, t) check_tensor(t);
    json_array_foreach(field(i, "in", JSON_ARRAY), k, t) check_tensor(t);
}

#define MESH_2_2                     \
    "gpt2.yaml mesh.dp=2 mesh.tp=2 " \
    "strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\",\"stage\":3}]"

START_TEST(explain_json)
{
    struct command *c = command_run("explain " MESH_2_2 " --rank 3 --json");
    json_t *o = parse(c->out), *section, *sections = field(o, "sections", JSON_ARRAY);
    size_t s, found = 0;
    expect_code(c, 0);
    ck_assert_int_eq(whole(o, "version"), 1);
    ck_assert_int_eq(whole(o, "rank"), 3);
    ck_assert_int_eq(whole(o, "ranks"), 4);
    ck_assert_int_eq(whole(o, "mesh.dp_shard.size"), 2);
    ck_assert_int_eq(whole(o, "mesh.dp_shard.coordinate"), 1);
    ck_assert_int_eq(whole(o, "mesh.tp.coordinate"), 1);
    json_array_foreach(sections, s, section)
    {
        json_t *list = field(section, "instructions", JSON_ARRAY);
        const char *name = json_string_value(field(section, "name", JSON_STRING));
        whole(section, "every");
        found += !strcmp(name, "micro") && whole(section, "repeat") == 1; /* of two micro-batches the first */
        for (size_t i = 0; i < json_array_size(list); i++)
            check_instruction(list, i);
    }
    ck_assert_int_eq(found, 1);
    ck_assert(real(o, "totals.flops") > 0 && real(o, "totals.sent_bytes.tp") > 0 &&
              real(o, "totals.sent_bytes.dp_shard") > 0);
    ck_assert_int_eq(whole(o, "totals.memory.arena_bytes"),
                     whole(o, "totals.memory.persistent_bytes") + whole(o, "totals.memory.temporary_bytes"));
    ck_assert_int_ge(whole(o, "totals.memory.temporary_bytes"), whole(o, "totals.memory.temporary_bound_bytes"));
}
END_TEST

START_TEST(explain_text)
{
    struct command *c = command_run("explain " MESH_2_2 " --rank 1 --section update");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "rank 1 of 4: dp 0/2, tp 1/2") != NULL, "%.200s", c->out);
    ck_assert_msg(strstr(c->out, "adamw"), "there is no update:\n%s", c->out);
}
END_TEST

/* The groups of `check` are those that `explain` says of each stage's first rank. */
static void expect_groups(const char *job, int stages)
{
    struct command *c = command_run("check %s --json", job);
    json_t *groups = json_object_get(parse(c->out), "groups"), *group, *explained;
    size_t i, k = 0;
    expect_code(c, 0);
    for (int stage = 0, n = 0; stage < stages; stage++, n = 0) {
        int64_t rank = whole(json_array_get(groups, k), "rank");
        c = command_run("explain %s --json --rank %d", job, (int)rank);
        explained = parse(c->out);
        ck_assert_int_eq(rank, stage * whole(explained, "ranks") / stages);
        json_array_foreach(json_object_get(explained, "groups"), i, group)
        {
            json_object_set_new(group, "stage", json_integer(stage));
            json_object_set_new(group, "rank", json_integer(rank));
            ck_assert_msg(json_equal(group, json_array_get(groups, k++)), "stage %d: group %zu is another", stage, i);
            n++;
        }
        ck_assert_int_gt(n, 1);
    }
    ck_assert_int_eq(k, json_array_size(groups));
}

/* No data file is needed, no process is started, and a thousand ranks are no matter. */
START_TEST(check_json)
{
    struct command *c = command_run("check " MESH_2_2 " mesh.dp=512 data.batch=1024 data.train=missing.txt --json");
    json_t *o = parse(c->out);
    expect_code(c, 0);
    ck_assert_msg(c->unhindered < promptly(5), "it took %g s", c->unhindered);
    ck_assert(json_is_true(json_object_get(o, "ok")));
    ck_assert_int_eq(whole(o, "ranks"), 1024);
    ck_assert_int_eq(whole(o, "programs"), 1);
    ck_assert_int_gt(whole(o, "instructions"), 100);
    ck_assert_int_gt(whole(o, "collectives"), 1024); /* 512 groups along tp, several times a micro-batch */
    ck_assert_int_eq(whole(o, "messages"), 0);
    ck_assert_int_gt(whole(o, "arena_bytes"), 0);
    ck_assert(real(o, "compile_s") >= 0 && real(o, "proof_s") >= 0);
    ck_assert(!json_object_get(o, "numerics"));
    c = command_run("check " MESH_2_2 " model.hidden=16 model.vocab=32 data.seq_len=8 --json --numerics");
    expect_code(c, 0);
    o = parse(c->out); /* one object still */
    ck_assert_int_eq(whole(o, "numerics.ranks"), 4);
    ck_assert(real(o, "numerics.loss") < 1e-9 && real(o, "numerics.parameter") < 1e-9);
    ck_assert(real(o, "numerics.limit") > 0 && real(o, "numerics.average") < 0);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(o, "numerics"), "instead")), "");
    expect_groups(MESH_2_2 " comm.inside=shm --per-machine 2", 1);
    expect_groups(
        MESH_2_2 " mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] --per-machine 4 comm.inside=shm", 2);
    ck_assert_int_eq(json_array_size(json_object_get(parse(command_run("check llama.yaml --json")->out), "groups")), 0);
    c = command_run("check llama.yaml");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "cannot deadlock by mismatch"), "it said: %s", c->out);
    ck_assert_msg(strstr(c->out, "\n  dtypes: ") && !strstr(c->out, "\n    "), "it said: %s", c->out);
    c = command_run("check -v llama.yaml");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "\n  dtypes: ") && strstr(c->out, "\n    the model: "), "it said: %s", c->out);
}
END_TEST

/* ---- help */

START_TEST(help)
{
    static const char *const names[] = {"train", "explain", "check",  "bench",  "plugins", "ckpt",
                                        "eval",  "sample",  "report", "doctor", "version"};
    struct command *c = command_run("help"), *one;
    expect_code(c, 0);
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        char usage[64];
        snprintf(usage, sizeof usage, "usage: heddle %s", names[i]);
        ck_assert_msg(strstr(c->out, names[i]) != NULL, "help does not know %s:\n%s", names[i], c->out);
        one = command_run("help %s", names[i]);
        expect_code(one, 0);
        ck_assert_msg(strstr(one->out, usage) && strstr(one->out, "example:\n  heddle "), "help %s says:\n%s", names[i],
                      one->out);
        ck_assert_str_eq(command_run("%s --help", names[i])->out, one->out);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"metrics, fields", metrics_fields, 1},
                                        {"metrics, every", metrics_every, 1},
                                        {"profile", profile_table, 1},
                                        {"roofline of a profile", roofline_of_a_profile, 1},
                                        {"roofline of rates", roofline_of_rates, 1},
                                        {"shares of the data", shares_of_the_data, 1},
                                        {"block times", block_times, 1},
                                        {"metrics, nowhere", metrics_nowhere, 1},
                                        {"lost output", lost_output, 1},
                                        {"names-of-bytes", names_of_bytes, 0},
                                        {"foreign files", foreign_files, 1},
                                        {"foreign models", foreign_models, 1},
                                        {"refused sink leaves metrics", refused_sink_leaves_metrics, 1},
                                        {"dry resumes", dry_resumes, 1},
                                        {"changed below a job", changed_below_a_job, 1},
                                        {"refused leaves metrics", refused_leaves_metrics, 1},
                                        {"hook of a third party", hook_of_a_third_party, 1},
                                        {"resolved job", resolved_job_is_a_job, 1},
                                        {"explain, JSON", explain_json, 1},
                                        {"explain", explain_text, 1},
                                        {"check", check_json, 1},
                                        {"help", help, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-outputs", tests);
}
