/* metrics.trace and heddle trace: what is in the file, by the rules of Chrome's trace format and by the job's own, and
 * what is said of it. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

enum { EVENTS = 20000 };

struct slice {
    double start, end;
    int64_t rank, lane, step;
    const char *name, *category;
};

struct trace {
    json_t *root;
    int n, n_flows, counters;
    struct slice slice[EVENTS];
    struct slice flow[EVENTS]; /* category: its ph */
    int64_t id[EVENTS];        /* of flows */
};

static struct trace *load(const char *path)
{
    struct trace *t = keep(hd__alloc(sizeof *t));
    size_t i;
    json_t *e;
    t->root = keep(json_load_file(path, 0, NULL));
    ck_assert_msg(t->root != NULL, "%s is no JSON", path);
    json_array_foreach(json_object_get(t->root, "traceEvents"), i, e)
    {
        const char *ph = json_string_value(json_object_get(e, "ph"));
        const json_t *args = json_object_get(e, "args");
        struct slice s = {.start = json_number_value(json_object_get(e, "ts")),
                          .rank = json_integer_value(json_object_get(e, "pid")),
                          .lane = json_integer_value(json_object_get(e, "tid")),
                          .step = json_integer_value(json_object_get(args, "step")),
                          .name = json_string_value(json_object_get(e, "name")),
                          .category = json_string_value(json_object_get(e, "cat"))};
        s.end = s.start + json_number_value(json_object_get(e, "dur"));
        ck_assert(s.name && ph && json_is_integer(json_object_get(e, "pid")));
        if (!strcmp(ph, "X"))
            t->slice[t->n++] = s;
        else if (strchr("stf", *ph)) {
            s.category = ph;
            t->id[t->n_flows] = json_integer_value(json_object_get(e, "id"));
            t->flow[t->n_flows++] = s;
        } else {
            t->counters += !strcmp(ph, "C");
            ck_assert(!strcmp(ph, "M") || (json_number_value(json_object_get(args, "bytes")) > 0 && s.start >= 0));
        }
        ck_assert(t->n < EVENTS && t->n_flows < EVENTS);
    }
    return t;
}

/* By rank, lane and time. */
static int in_order(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    return x->start != y->start ? (x->start < y->start ? -1 : 1) : (x->end > y->end) - (x->end < y->end);
}

/* Slices of a lane follow each other; flows begin at one rank and lead, forward in time, to others. */
static void expect_format(struct trace *t)
{
    qsort(t->slice, (size_t)t->n, sizeof *t->slice, in_order);
    for (int k = 0; k < t->n; k++) {
        const struct slice *s = &t->slice[k], *before = k ? s - 1 : s;
        ck_assert(s->start >= 0 && s->end >= s->start && s->lane > 0); /* Perfetto gives thread 0 another number */
        ck_assert_msg(before == s || before->rank != s->rank || before->lane != s->lane ||
                          s->start > before->end - 0.0005, /* half a nanosecond: Perfetto drops what overlaps by one */
                      "%s begins in %s", s->name, before->name);
    }
    for (int k = 0; k < t->n_flows; k++) {
        const struct slice *f = &t->flow[k];
        int begins = *f->category == 's';
        ck_assert(begins == (!k || t->id[k] != t->id[k - 1]));
        if (begins)
            ck_assert(k + 1 < t->n_flows && t->id[k + 1] == t->id[k]);
        else
            ck_assert(f->rank != t->flow[k - 1].rank && f->start > t->flow[k - 1].start - 0.002);
        ck_assert((*f->category == 'f') == (k + 1 == t->n_flows || t->id[k + 1] != t->id[k]));
    }
}

static int count(const struct trace *t, int64_t rank, const char *category, const char *name)
{
    int n = 0;
    for (int k = 0; k < t->n; k++)
        n += t->slice[k].rank == rank && (!category || !strcmp(t->slice[k].category, category)) &&
             (!name || !strcmp(t->slice[k].name, name));
    return n;
}

static int count_flows(const struct trace *t, const char *name)
{
    int n = 0;
    for (int k = 0; k < t->n_flows; k++)
        n += *t->flow[k].category == 's' && !strcmp(t->flow[k].name, name);
    return n;
}

START_TEST(all_ranks)
{
    expect_code(command_run("train llama.yaml job.name=dp job.steps=7 mesh.dp=2 "
                            "metrics.trace={\"steps\":\"3-5\",\"file\":\"deep/er/dp.json\",\"ranks\":\"all\"}"),
                0);
    struct trace *t = load("deep/er/dp.json");
    expect_format(t);
    ck_assert_int_gt(t->counters, 10);
    for (int64_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(count(t, rank, "step", NULL), 3);
        ck_assert(count(t, rank, "step", "step 3") == 1 && count(t, rank, "step", "step 5") == 1);
        /* 4 sequences of a rank, two at a time */
        ck_assert_int_eq(count(t, rank, NULL, "xent_head"), 3 * 2);
        ck_assert_int_eq(count(t, rank, "F", "attention"), 3 * 2 * 2);
        ck_assert_int_eq(count(t, rank, "O", "all_reduce") > 0, 1);
        ck_assert_int_eq(count(t, rank, "wait", "wait all_reduce"), count(t, rank, "O", "all_reduce"));
    }
    ck_assert_int_eq(count_flows(t, "all_reduce"), count(t, 0, "O", "all_reduce"));
    for (int k = 0; k < t->n; k++) /* within its step */
        ck_assert(t->slice[k].step >= 3 && t->slice[k].step <= 5);
}
END_TEST

START_TEST(names)
{
    static const char *const blocks[] = {"L0", "L1", "head"};
    int seen[3] = {0}, micros[2] = {0};
    size_t i;
    json_t *e;
    expect_code(command_run("train llama.yaml job.name=names job.steps=4 metrics.trace=names.json data.micro_batch=4"),
                0);
    struct trace *t = load("names.json");
    expect_format(t);
    ck_assert_int_eq(t->n_flows, 0);
    ck_assert_int_eq(count(t, 0, "step", NULL), 2); /* the third and the fourth, there is no fifth */
    json_array_foreach(json_object_get(t->root, "traceEvents"), i, e)
    {
        const json_t *args = json_object_get(e, "args");
        const char *block = json_string_value(json_object_get(args, "block"));
        int64_t micro = json_integer_value(json_object_get(args, "micro"));
        for (size_t k = 0; k < 3; k++)
            seen[k] += block && !strcmp(block, blocks[k]);
        if (!strcmp(json_string_value(json_object_get(e, "name")), "attention")) {
            ck_assert(micro == 0 || micro == 1);
            micros[micro]++;
        }
    }
    ck_assert(seen[0] && seen[0] == seen[1] && seen[2]);
    ck_assert(micros[0] == 2 * 2 && micros[1] == 2 * 2);
}
END_TEST

START_TEST(messages)
{
    expect_code(command_run("train llama.yaml job.name=pp job.steps=4 mesh.pp=2 data.micro_batch=2 "
                            "strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] metrics.trace=pp.json"),
                0);
    struct trace *t = load("pp.json");
    int sends = count(t, 0, "F", "send") + count(t, 1, "B", "send");
    expect_format(t);
    ck_assert_int_eq(count(t, 0, "F", "send"), 2 * 4); /* steps, micro-batches */
    ck_assert_int_eq(count_flows(t, "send"), sends);
    for (int k = 0; k < t->n; k++) /* both stages number their micro-batches */
        ck_assert(t->slice[k].rank < 2);
    struct command *c = command_run("trace pp.json --json");
    expect_code(c, 0);
    json_t *root = keep(json_loads(c->out, 0, NULL)), *ranks = json_object_get(root, "ranks");
    const char *axis = json_string_value(json_object_get(json_array_get(json_object_get(root, "axes"), 0), "name"));
    ck_assert_str_eq(axis, "pp");
    for (size_t r = 0; r < 2; r++) {
        const json_t *rank = json_array_get(ranks, r);
        double bubble = json_number_value(json_object_get(rank, "bubble")), sum = 0;
        static const char *const parts[] = {"compute_s", "exposed_comm_s", "feed_s"};
        for (size_t k = 0; k < HD__COUNT(parts); k++)
            sum += json_number_value(json_object_get(rank, parts[k]));
        ck_assert(bubble > 0 && bubble < 1);
        ck_assert(sum > 0 && sum < json_number_value(json_object_get(rank, "step_s")));
    }
}
END_TEST

START_TEST(some_ranks)
{
    expect_code(command_run("train llama.yaml job.name=some job.steps=5 mesh.dp=2 "
                            "metrics.trace={\"steps\":2,\"file\":\"some.json\",\"ranks\":[1]}"),
                0);
    struct trace *t = load("some.json");
    expect_format(t);
    ck_assert(count(t, 0, NULL, NULL) == 0 && count(t, 1, NULL, NULL) > 50);
    ck_assert(count(t, 1, "step", "step 2") == 1 && count(t, 1, "step", NULL) == 1);
    ck_assert_int_eq(t->n_flows, 0);
}
END_TEST

/* As torch.profiler.schedule: 2 skipped, then cycles of 1 + 1 + 2 steps, a file each; a run that goes on in a cycle
 * begins with the next. */
START_TEST(schedule)
{
#define CYCLES                                                                                         \
    "llama.yaml job.name=cycles mesh.dp=2 checkpoint.dir=cycles checkpoint.keep=0 checkpoint.every=9 " \
    "metrics.trace={\"file\":\"c.json\",\"schedule\":{\"skip_first\":2,\"wait\":1,\"warmup\":1,\"active\":2%s}} "
    static const int first[] = {5, 9, 13};
    char name[64], step[32];
    expect_code(command_run("train " CYCLES "job.steps=18", ",\"repeat\":3"), 0);
    for (size_t i = 0; i < HD__COUNT(first); i++) {
        snprintf(name, sizeof name, "c-%d-%d.json", first[i], first[i] + 1);
        struct trace *t = load(name);
        expect_format(t);
        for (int r = 0; r < 2; r++) {
            ck_assert_int_eq(count(t, r, "step", NULL), 2);
            for (int s = 0; s < 2; s++) {
                snprintf(step, sizeof step, "step %d", first[i] + s);
                ck_assert_int_eq(count(t, r, "step", step), 1);
            }
        }
        ck_assert_int_eq(remove(name), 0);
    }
    ck_assert_int_eq(access("c-17-18.json", F_OK), -1);
    struct command *c = command_run("train " CYCLES "job.steps=18 checkpoint.resume=cycles/step-00000009", "");
    expect_code(c, 0);
    expect_says(c, "c-17-18.json");
    ck_assert_int_eq(access("c-9-10.json", F_OK), -1);
    load("c-13-14.json");
    c = command_run("train " CYCLES "job.steps=22 checkpoint.resume=cycles/step-00000018", ",\"repeat\":4");
    expect_code(c, 0);
    expect_says(c, "metrics.trace: no cycle of its schedule begins after step 18");
}
END_TEST

/* The estimate is that of its rates; the parts are those of the table. */
START_TEST(summary)
{
    size_t i;
    json_t *row;
    int transfers = 0;
    expect_code(command_run("train llama.yaml job.name=sum job.steps=5 mesh.dp=2 metrics.trace=sum.json"), 0);
    struct command *c = command_run("trace sum.json");
    expect_code(c, 0);
    static const char *const says[] = {"trace of sum: steps 3 to 5 on 2 ranks",
                                       "exposed communication by axis",
                                       "dp_shard",
                                       "L1",
                                       "attention_grad",
                                       "predicted us",
                                       "all_reduce",
                                       "flops=1e+11"};
    for (size_t k = 0; k < HD__COUNT(says); k++)
        ck_assert_msg(strstr(c->out, says[k]) != NULL, "no %s in\n%s", says[k], c->out);
    c = command_run("trace sum.json --json --rates flops=1e30,memory=1e30,kernel=0.02,latency=0.03,link=1e30");
    json_t *root = keep(json_loads(c->out, 0, NULL));
    struct command *idle = command_run("trace sum.json --rates tp.link=1e9");
    expect_code(idle, 2);
    expect_says(idle, "sum.json: --rates: nothing is sent along tp in this trace, but along dp");
    expect_code(command_run("trace sum.json --rates dp.link=1e9"), 0);
    json_array_foreach(json_object_get(root, "instructions"), i, row)
    {
        double calls = json_number_value(json_object_get(row, "calls")),
               predicted = json_number_value(json_object_get(row, "predicted_seconds"));
        int transfer = json_is_true(json_object_get(row, "transfer"));
        transfers += transfer;
        ck_assert(fabs(predicted / calls - (transfer ? 0.03 : 0.02)) < 1e-9);
    }
    ck_assert(transfers > 0 && i > 10);
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        const char *before, *value, *says;
    } rows[] = {
        {":", "{\"steps\":\"20-24\",\"file\":\"t.json\"}", "metrics.trace: step 24 is after the job's last, 20"},
        {":", "{\"steps\":\"5-4\",\"file\":\"t.json\"}",
         "metrics.trace.steps: 5-4 is neither a step nor a range of steps"},
        {":", "{\"steps\":\"0\",\"file\":\"t.json\"}", "metrics.trace.steps: 0 is neither a step"},
        {":", "{\"steps\":\"2-\",\"file\":\"t.json\"}", "metrics.trace.steps: 2- is neither a step"},
        {":", "{\"steps\":\"x\",\"file\":\"t.json\"}", "metrics.trace.steps: x is neither a step"},
        {":", "{\"steps\":[1,2],\"file\":\"t.json\"}", "metrics.trace.steps: a list is neither a step"},
        {":", "{\"steps\":\"2-3\"}", "metrics.trace: file is missing"},
        {":", "{\"file\":\"t.json\",\"step\":2}",
         "metrics.trace: unknown key step; the keys are file, steps, schedule, ranks"},
        {":", "{\"file\":\"t.json\",\"schedule\":{\"wait\":17,\"warmup\":1,\"active\":3}}",
         "metrics.trace: the first cycle of its schedule ends at step 21, after the job's last, 20"},
        {":", "{\"file\":\"t.json\",\"schedule\":{\"wait\":1},\"steps\":3}", "of which active is at least 1"},
        {":", "{\"file\":\"t.json\",\"schedule\":{\"active\":1},\"steps\":3}",
         "steps and schedule are two ways to say the same"},
        {":", "{\"file\":\"t.json\",\"schedule\":{\"active\":1,\"warm\":3}}",
         "metrics.trace.schedule: unknown key warm; the keys are skip_first, wait, warmup, active, repeat"},
        {":", "{\"file\":\"t.json\",\"schedule\":{\"active\":-1}}",
         "metrics.trace.schedule.active: -1 is out of range"},
        {":", "{\"file\":\"t.json\",\"schedule\":5}", "metrics.trace.schedule: {wait: 99, warmup: 1, active: 3"},
        {":", "{\"file\":\"t.json\",\"ranks\":[2]}", "metrics.trace: there is no rank 2: the job has ranks 0 to 1"},
        {":", "{\"file\":\"t.json\",\"ranks\":\"some\"}", "metrics.trace.ranks: 'some' is not a whole number"},
        {":", "{\"file\":\"t.json\",\"ranks\":\"0-7\"}",
         "metrics.trace.ranks: all, a rank or a list of ranks is wanted: [0, 3]"},
        {":", "{\"file\":\"t.json\",\"ranks\":[]}", "metrics.trace.ranks: all, a rank or a list of ranks is wanted"},
        {":", "{\"file\":\"t.json\",\"ranks\":[0,1,0]}", "metrics.trace.ranks: rank 0 is there twice"},
        {":", "true", "metrics.trace: 'true' is no name of a file: leave the key out, or write ./true"},
        {":", "5", "metrics.trace: a file is wanted"},
        {":", "20-24", "metrics.trace: a file is wanted"},
        {":", "[t.json]", "metrics.trace is a list where FILE.json or"},
        {":", "s3://bucket/t.json", "metrics.trace: 's3://bucket/t.json' is a URL"},
        {":", ".", "metrics.trace: .: Is a directory"},
        {"echo precious > t.json", "t.json", "t.json is there, and heddle did not write it"},
        {"ln -sf elsewhere t.json", "t.json", "a symbolic link: name the file itself"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        ck_assert_int_eq(system(rows[i].before), 0);
        struct command *c = command_run("train llama.yaml mesh.dp=2 metrics.trace=%s", rows[i].value);
        expect_code(c, 2);
        expect_says(c, rows[i].says);
    }
    static const char *const commands[][2] = {
        {"trace", "which job file?"},
        {"trace nowhere.json", "nowhere.json: cannot open the trace"},
        {"trace nowhere.yaml", "nowhere.yaml: cannot open the job file"},
        {"trace cut.json", "cut.json:1: not a trace"},
        {"trace rows.jsonl", "rows.jsonl: metrics, which `heddle report` reads: name a job or a trace.json"},
        {"trace rows.jsonl --steps 2", "rows.jsonl: metrics, which"},
        {"trace made.json --steps 2", "made.json is a trace already: leave out all but --rates and --json"},
        {"trace made.json job.steps=2", "made.json is a trace already"},
        {"trace llama.yaml --steps 0", "--steps: '0' is neither a step nor a range of steps"},
        {"trace llama.yaml --steps 5-4", "--steps: '5-4' is neither"},
        {"trace llama.yaml --steps two", "--steps: 'two' is neither"},
        {"trace llama.yaml --steps 2-", "--steps: '2-' is neither"},
        {"trace llama.yaml --steps", "--steps needs a value"},
        {"trace llama.yaml --steps 19-21", "--steps 19-21: step 21 is after the job's last, 20: name earlier steps"},
        {"trace llama.yaml job={\"epochs\":0.01} --steps 9000", "metrics.trace: step 9000 is after the job's last"},
        {"trace llama.yaml --rates wings=2", "unknown rate 'wings'"},
        {"trace llama.yaml --out s3://bucket/t.json", "'s3://bucket/t.json' is a URL"},
        {"trace llama.yaml --out precious.json", "precious.json is there, and heddle did not write it"},
        {"trace llama.yaml --out .", ".: Is a directory"},
        {"trace llama.yaml optimizer.rate=2", "unknown key rate"},
        {"trace empty.json", "empty.json: not a trace that metrics.trace of a job wrote"},
        {"trace empty.json empty.json", "two job files"},
        {"trace empty.json --rates wings=2", "unknown rate 'wings'"},
        {"trace --what", "there is no option --what"},
    };
    write_file("empty.json", "{}");
    write_file("rows.jsonl", "{\"step\": 1}\n{\"step\": 2}\n");
    write_file("cut.json", "{\"otherData\":{");
    write_file("made.json", "{\"traceEvents\":[]}");
    write_file("precious.json", "precious");
    for (size_t i = 0; i < HD__COUNT(commands); i++) {
        struct command *c = command_run("%s", commands[i][0]);
        expect_code(c, 2);
        expect_says(c, commands[i][1]);
    }
}
END_TEST

/* A device that only enqueues is waited for after each instruction; what is computed stays the same. */
START_TEST(streams)
{
    static struct curve without, with;
    const char *job = "llama.yaml mesh.dp=2 job.steps=6 plugins.path=[\"" ASYNC "\"] device.use=async device.seed=3";
    train(&without, "plain", "%s", job);
    train(&with, "traced", "%s metrics.trace={\"file\":\"async.json\",\"steps\":\"3-4\"}", job);
    expect_same_bits(&without, &with);
    struct trace *t = load("async.json");
    expect_format(t);
    for (int64_t rank = 0; rank < 2; rank++)
        ck_assert(count(t, rank, "step", NULL) == 2 && count(t, rank, NULL, "xent_head") == 2 * 2);
    ck_assert_int_eq(count_flows(t, "all_reduce"), count(t, 0, "O", "all_reduce"));
}
END_TEST

/* Steps that were trained before are said; a run that ends within them writes what there is. */
START_TEST(partial)
{
    expect_code(command_run("train llama.yaml job.name=part job.steps=4 checkpoint={}"), 0);
    struct command *c = command_run("train llama.yaml job.name=part job.steps=6 checkpoint={} "
                                    "metrics.trace={\"file\":\"part.json\",\"steps\":\"2-4\"}");
    expect_code(c, 0);
    expect_says(c, "metrics.trace: steps 2 to 4 were trained before this run goes on: nothing is traced");
    ck_assert(access("part.json", F_OK));
    expect_code(command_run("train llama.yaml job.name=part job.steps=9 checkpoint={} "
                            "metrics.trace={\"file\":\"part.json\",\"steps\":\"5-8\"}"),
                0);
    struct trace *t = load("part.json");
    ck_assert(count(t, 0, "step", NULL) == 2 && count(t, 0, "step", "step 7") == 1);
}
END_TEST

/* ---- heddle trace JOB */

#define OWN                                                                                                      \
    "llama.yaml job.name=own mesh.dp=2 checkpoint.every=2 checkpoint.keep=0 eval.every=1 data.val_fraction=0.1 " \
    "metrics.tensorboard=board metrics.blocks=blocks.csv "

/* Names, times and sizes of all that the job's own run has written. */
static char *written(void)
{
    ck_assert_int_eq(system("find runs/own board blocks.csv -path runs/own/trace -prune -o -type f -printf "
                            "'%p %T@ %s\\n' | sort > written"),
                     0);
    return read_file("written");
}

static void expect_steps(const char *path, int64_t first, int64_t last, int ranks)
{
    struct trace *t = load(path);
    expect_format(t);
    for (int k = 0; k < t->n; k++)
        ck_assert(t->slice[k].step >= first && t->slice[k].step <= last);
    for (int64_t rank = 0; rank < ranks; rank++)
        ck_assert_int_eq(count(t, rank, "step", NULL), last - first + 1);
}

/* One command records and sums up; the job's own run, which a second begins anew each time, stays as it is. */
START_TEST(recorded)
{
    expect_code(command_run("train " OWN "job.steps=5"), 0);
    char *before = written();
    ck_assert(strstr(before, "step-00000005") && strstr(before, "board") && strstr(before, "blocks.csv"));
    for (int again = 0; again < 2; again++) {
        struct command *c = command_run("trace " OWN "--steps 7-8 --json");
        expect_code(c, 0);
        ck_assert_str_eq(written(), before);
        json_t *root = keep(json_loads(c->out, 0, NULL));
        ck_assert_msg(root != NULL, "not JSON alone: %s", c->out);
        ck_assert_str_eq(json_string_value(json_object_get(root, "job")), "own");
        ck_assert_int_eq(json_integer_value(json_object_get(root, "first")), 7);
        ck_assert_int_eq(json_integer_value(json_object_get(root, "last")), 8);
        ck_assert_uint_eq(json_array_size(json_object_get(root, "ranks")), 2);
        expect_steps("runs/own/trace/trace.json", 7, 8, 2);
        expect_says(c, "trains in runs/own/trace until runs/own/trace/trace.json is written");
        expect_says(c, "from scratch");
        expect_says(c, "trained to step 8:");
        ck_assert(!strstr(c->err, "val_loss") && !strstr(c->err, "step 9/"));
    }
    ck_assert_int_eq(access("runs/own/trace/metrics.jsonl", F_OK), -1);
}
END_TEST

START_TEST(recorded_beside_the_run)
{
    struct command *run = command_start(NULL, "train llama.yaml job.name=busy checkpoint={} job.steps=100000");
    curve_wait("busy", 1);
    struct command *c = command_run("trace llama.yaml job.name=busy checkpoint={} --steps 2");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "trace of busy: steps 2 to 2 on 1 rank"));
    kill(run->pid, SIGTERM);
    command_wait(run, 30);
    expect_code(run, 3);
}
END_TEST

/* Steps, ranks and file as the job says them, as the command line does, or left out. */
START_TEST(recorded_as_said)
{
    static const struct {
        const char *words, *file;
        int first, last;
    } rows[] = {
        {"job.name=said", "runs/said/trace/trace.json", 3, 5},
        {"job.name=said job.steps=4", "runs/said/trace/trace.json", 3, 4},
        {"job.name=said --out made/here.json --steps 4", "made/here.json", 4, 4},
        {"job.name=said metrics={}", "runs/said/trace/trace.json", 3, 5},
        {"job.name=said metrics.trace=keyed.json", "keyed.json", 3, 5},
        {"job.name=said metrics.jsonl=elsewhere/m.jsonl", "elsewhere/trace/trace.json", 3, 5},
        {"job={\"name\":\"said\",\"epochs\":1} --steps 2-3", "runs/said/trace/trace.json", 2, 3},
    };
    static const char *const own[][2] = {
        {"{file: own.json, steps: 6-7}", "steps 6 to 7"},
        {"{file: own.json, schedule: {skip_first: 1, wait: 2, active: 3}}", "steps 4 to 6"},
        {"own.json", "steps 3 to 5"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        remove(rows[i].file);
        expect_code(command_run("trace llama.yaml %s", rows[i].words), 0);
        expect_steps(rows[i].file, rows[i].first, rows[i].last, 1);
    }
    for (size_t i = 0; i < HD__COUNT(own); i++) {
        write_file("said.yaml", keep(hd__format("%s\nmetrics: {trace: %s}\n", read_file("llama.yaml"), own[i][0])));
        struct command *c = command_run("trace said.yaml");
        expect_code(c, 0);
        ck_assert_msg(strstr(c->out, own[i][1]) != NULL, "%s", c->out);
        ck_assert_int_eq(access("own.json", F_OK), -1);
    }
    struct command *c = command_run("trace llama.yaml job.name=said job.steps=1000000 --steps 2-3");
    expect_code(c, 0);
    char *line = strstr(c->err, "\nstep 3/3 "); /* the run ends there, not at the job's last step */
    ck_assert_ptr_nonnull(line);
    *strchr(line + 1, '\n') = 0;
    ck_assert_msg(strstr(line, "eta 0m00s") != NULL, "%s", line);
    expect_code(command_run("trace llama.yaml job.name=said mesh.dp=2 metrics.trace.ranks=[1] --out one.json"), 0);
    struct trace *t = load("one.json");
    ck_assert(count(t, 0, NULL, NULL) == 0 && count(t, 1, "step", NULL) == 3);
}
END_TEST

/* A job may be JSON, and the name of a trace any. */
START_TEST(told_apart)
{
    struct command *c = command_run("train llama.yaml job.name=apart job.steps=5 metrics.trace=trace.dat");
    expect_code(c, 0);
    write_file(
        "job.json",
        "{\"model\": {\"use\": \"transformer\", \"family\": \"llama\", \"layers\": 1, "
        "\"hidden\": 64, \"heads\": 4, \"vocab\": 256}, \"job\": {\"steps\": 3}, "
        "\"optimizer\": {\"use\": \"adamw\"}, \"data\": {\"train\": \"corpus.txt\", \"seq_len\": 32, \"batch\": 4}}\n");
    c = command_run("trace trace.dat");
    expect_code(c, 0);
    ck_assert(strstr(c->out, "trace of apart: steps 3 to 5") && !strstr(c->err, "trained"));
    c = command_run("trace job.json");
    expect_code(c, 0);
    ck_assert(strstr(c->out, "trace of job: steps 3 to 3") != NULL);
    expect_says(c, "trained to step 3");
}
END_TEST

/* The first of the ranks that another launcher started sums up, and no other. */
START_TEST(recorded_when_launched)
{
    int port = free_port();
    struct command *c[2];
    for (int rank = 1; rank >= 0; rank--)
        c[rank] = command_start_rank(rank, 2, 0, port, "trace llama.yaml job.name=launched --steps 2-3");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    ck_assert_ptr_nonnull(strstr(c[0]->out, "trace of launched: steps 2 to 3 on 2 ranks"));
    ck_assert_str_eq(c[1]->out, "");
}
END_TEST

/* A signal ends it between steps, with what it has of the trace; a trace that cannot be written is a failure, and no
 * older one is summed up for it. */
START_TEST(recorded_in_vain)
{
    struct command *c = command_start(NULL, "trace llama.yaml job.name=vain mesh.dp=2 job.steps=100000 --steps 99999");
    curve_wait("vain/trace", 1);
    struct command *second = command_run("trace llama.yaml job.name=vain mesh.dp=2");
    expect_code(second, 2);
    expect_says(second, "runs/vain/trace is in use by process");
    kill(c->pid, SIGINT);
    command_wait(c, 30);
    expect_code(c, 3);
    expect_says(c, "a run for its trace saves nothing");
    ck_assert_str_eq(c->out, "");
    ck_assert_int_eq(access("runs/vain/trace/trace.json", F_OK), -1);
    expect_code(command_run("trace llama.yaml job.name=late mesh.dp=2 --out late.json"), 0);
    /* steps are paused, so that the file is in the way before the last */
    c = command_start(NULL, "trace llama.yaml job.name=late mesh.dp=2 job.steps=150 --steps 149 --out late.json "
                            "comm.hooks=[{\"use\":\"faults\",\"kind\":\"delay\",\"every\":2,\"seconds\":\"10ms\"}]");
    curve_wait("late/trace", 1);
    ck_assert(rename("late.json", "older.json") == 0 && mkdir("late.json", 0700) == 0);
    command_wait(c, 60);
    expect_code(c, 1);
    expect_says(c, "metrics.trace: late.json");
    ck_assert_str_eq(c->out, "");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"all ranks", all_ranks, 1},
                                        {"names", names, 1},
                                        {"messages", messages, 1},
                                        {"some ranks", some_ranks, 1},
                                        {"schedule", schedule, 1},
                                        {"summary", summary, 1},
                                        {"refusals", refusals, 1},
                                        {"partial", partial, 1},
                                        {"streams", streams, 1},
                                        {"recorded", recorded, 1},
                                        {"recorded beside the run", recorded_beside_the_run, 1},
                                        {"recorded as said", recorded_as_said, 1},
                                        {"told apart", told_apart, 1},
                                        {"recorded when launched", recorded_when_launched, 1},
                                        {"recorded in vain", recorded_in_vain, 1},
                                        {NULL, NULL, 0}};
    return system_run("trace", tests);
}
