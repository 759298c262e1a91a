/* heddle report: pages of runs that the tests write, damaged ones among them. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

#define START(name, lr)                                                                                             \
    "{\"event\": \"start\", \"run\": \"00000000000000" name "\", \"job\": {\"job\": {\"name\": \"run-" name         \
    "\", \"steps\": 100}, \"optimizer\": {\"lr\": " lr "}, \"metrics\": {\"every\": 1}}, \"mesh\": {\"dp_shard\": " \
    "2, \"tp\": 1}, \"parameters\": 1234567}\n"

#define WITH_FILES(name, event, val)                                                                         \
    "{\"event\": \"" event "\", \"run\": \"00000000000000" name "\", \"job\": {\"job\": {\"steps\": 100}}, " \
    "\"files_of\": {\"data.train\": \"9 bytes, checksum 00000001\", \"data.val\": \"" val "\"}}\n"

#define ON(name, threads, peak)                                                                                      \
    "{\"event\": \"start\", \"run\": \"00000000000000" name                                                          \
    "\", \"job\": {\"job\": {\"steps\": 101}, \"device\": {\"use\": \"cpu\"}, \"precision\": {}, \"mesh\": {}}, "    \
    "\"machine\": {\"processor\": \"Xeon\", \"threads\": " threads ", \"heddle\": \"0.1.0\"}, \"peak_flops\": " peak \
    "}\n"
#define MFU(name, mfu)                                                                 \
    "{\"step\": 101, \"loss\": 1, \"tokens\": 101000, \"step_s\": 0.25, \"mfu\": " mfu \
    ", \"run\": \"00000000000000" name "\"}\n"

static void add_rows(struct hd__text *text, const char *id, int from, int to, double scale)
{
    for (int step = from; step <= to; step++) {
        hd__text_add(text, "{\"step\": %d, \"loss\": %.6f, ", step, scale * (1 + 4.0 / step));
        if (step % 25 == 0)
            hd__text_add(text, "\"val_loss\": %.6f, ", scale * (1.1 + 4.0 / step));
        hd__text_add(
            text,
            "\"grad_norm\": %s, \"tokens\": %d, \"tokens_per_s\": 4000, \"step_s\": 0.25, \"comm_s\": 0.05, "
            "\"exposed_comm_s\": {\"dp_shard\": 0.04}, \"gpu_watts\": 312.5, \"<b> \\\"onload=\\\"\": 1, "
            "\"rss_bytes\": 1073741824, "
            "\"compute_min_s\": 0.1, \"compute_median_s\": 0.1, \"compute_max_s\": 0.15, \"compute_max_rank\": 1, "
            "\"samples_per_s\": 8, \"comm_s_dp_shard\": 0.03, \"run\": \"00000000000000%s\"}\n",
            step == 7 ? "null" : "1.5", 1000 * step, id);
    }
}

/* A run of 100 steps in runs/NAME. */
static void write_run(const char *name, const char *id, const char *start, double scale, const char *more)
{
    struct hd__text text = {0};
    char path[64];
    mkdir("runs", 0777);
    snprintf(path, sizeof path, "runs/%s", name);
    mkdir(path, 0777);
    hd__text_add(&text, "%s", start);
    add_rows(&text, id, 1, 100, scale);
    hd__text_add(&text, "%s", more);
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", name);
    write_file(path, text.at);
    hd__text_free(&text);
}

static const char events[] =
    "{\"event\": \"alarm\", \"rule\": \"loss_spike\", \"step\": 40, \"rank\": 0, \"value\": 9, \"limit\": 3, "
    "\"words\": "
    "\"the loss is <9> & odd\", \"run\": \"00000000000000aa\"}\n"
    "{\"event\": \"checkpoint\", \"step\": 50, \"seconds\": 2.5, \"exposed_s\": 0.5, \"bytes\": 1048576, \"run\": "
    "\"00000000000000aa\"}\n"
    "{\"event\": \"restart\", \"round\": 1, \"step\": 50, \"ranks\": 2, \"lost\": [1], \"seconds\": 4, \"run\": "
    "\"00000000000000aa\"}\n";

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

static void expect_line(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words) != NULL, "'%s' is not in:\n%.2000s", words, text);
}

START_TEST(text_page)
{
    struct command *c;
    write_run("one", "aa", START("aa", "0.001"), 2, events);
    c = command_run("report runs/one");
    expect_code(c, 0);
    ck_assert_str_eq(c->err, "");
    expect_line(c->out, "state                   complete\n");
    expect_line(c->out, "parameters              1,234,567\n");
    expect_line(c->out, "ranks                   2, dp_shard 2\n");
    expect_line(c->out, "tokens                  100,000\n");
    expect_line(c->out, "training time           25 s\n");
    expect_line(c->out, "last loss               2.0800\n");
    expect_line(c->out, "best val_loss           2.2800 at step 100\n");
    expect_line(c->out, "tokens/s, median        4,000\n");
    expect_line(c->out, "exposed communication   20.0 % of the step\n");
    expect_line(c->out, "slowest rank            rank 1, 1.5 x the median\n");
    expect_line(c->out, "memory of a rank, most  1.0 GiB\n");
    expect_line(c->out, "saves                   1, 2.5 s each, 500 ms exposed\n");
    expect_line(c->out, "restarts                1\nalarms                  1\n");
    expect_line(c->out, "loss           one  #");
    expect_line(c->out, "_  10 -> 2.08\n");
    expect_line(c->out, "step 40       alarm loss_spike, rank 0: the loss is <9> & odd\n");
    expect_line(c->out, "step 50       restart 1, to 2 ranks, 1 lost; it took 4 s\n");
    ck_assert_ptr_null(strstr(c->out, "keys that differ"));
}
END_TEST

/* Literal colours, nothing from elsewhere, every chart and mark. */
START_TEST(html_page)
{
    static const char *const titles[] = {">loss<",
                                         ">loss by tokens<",
                                         ">loss by time<",
                                         ">throughput, tokens/s<",
                                         ">step time (ms)<",
                                         ">exposed communication of rank 0 (ms)<",
                                         ">memory of rank 0 (GiB)<",
                                         ">gradient norm<",
                                         ">gpu_watts<",
                                         ">exposed_comm_s.dp_shard (ms)<",
                                         ">compute, slowest rank (ms)<",
                                         ">comm_s_dp_shard (ms)<"};
    char *page;
    write_run("one", "aa", START("aa", "0.001"), 2, events);
    unlink("page.html");
    for (int again = 0; again < 2; again++) { /* it replaces its own */
        struct command *c = command_run("report runs/one --html page.html");
        expect_code(c, 0);
        ck_assert_str_eq(c->out, "");
    }
    page = read_file("page.html");
    for (size_t i = 0; i < HD__COUNT(titles); i++)
        expect_line(page, titles[i]);
    ck_assert_int_eq(count(page, ">samples_per_s<") + count(page, "_rank<") + count(page, ">compute_min_s"), 0);
    ck_assert_int_eq(count(page, "<svg class=\"chart\" viewBox=\"0 0 1056"), 1);
    for (const char *at = page; (at = strstr(at, "<polyline")); at++)
        ck_assert_msg(strstr(at, "stroke=\"#") && strstr(at, "stroke=\"#") < strchr(at, '>'), "no colour: %.80s", at);
    ck_assert_int_eq(count(page, "class=\"mark alarm\""), 3); /* in the three charts of the loss */
    ck_assert_int_eq(count(page, "class=\"mark save\""), 3);
    ck_assert_int_eq(count(page, "class=\"mark restart\""), 3);
    expect_line(page, "the loss is &lt;9&gt; &amp; odd");
    expect_line(page, "aria-label=\"&lt;b&gt; 'onload='\">");
    expect_line(page, "optimizer.lr=0.001\n");
    ck_assert_int_eq(count(page, "http:") + count(page, "https:") + count(page, "<script") + count(page, "src="), 0);
    ck_assert_int_eq(count(page, "nan,") + count(page, "inf,") + count(page, ",nan") + count(page, ",inf"), 0);
}
END_TEST

START_TEST(runs_compared)
{
    struct command *c;
    write_run("one", "aa", START("aa", "0.001"), 2, "");
    write_run("two", "bb", START("bb", "0.004"), 3, "");
    c = command_run("report runs/one runs/two");
    expect_code(c, 0);
    expect_line(c->out, "keys that differ\noptimizer.lr            0.001                               0.004\n\n");
    write_run("path-a", "aa", START("aa", "\"/data/corpora/of/a/group/english/a.bin\""), 2, "");
    write_run("path-b", "bb", START("bb", "\"/data/corpora/of/a/group/english/b.bin\""), 2, "");
    expect_line(
        command_run("report runs/path-a runs/path-b")->out,
        "keys that differ\noptimizer.lr            .../a/group/english/a.bin           .../a/group/english/b.bin\n");
    /* Other files under the same names, as both runs say; an older heddle did not. */
    write_run("files-a", "aa", WITH_FILES("aa", "start", "900 bytes, checksum 0000000a"), 2, "");
    write_run("files-b", "bb", WITH_FILES("bb", "start", "900 bytes, checksum 0000000b"), 3, "");
    expect_line(command_run("report runs/files-a runs/files-b")->out,
                "keys that differ\nfiles of data.val       900 bytes, checksum 0000000a        900 bytes, checksum "
                "0000000b");
    expect_line(command_run("report runs/files-a runs/one")->out, "keys that differ\noptimizer.lr ");
    ck_assert_ptr_null(strstr(command_run("report runs/files-a runs/one")->out, "files of"));
    write_run("files-c", "aa", WITH_FILES("aa", "start", "900 bytes, checksum 0000000a"), 2,
              WITH_FILES("aa", "resume", "800 bytes, checksum 0000000c"));
    expect_says(command_run("report runs/files-c"),
                "metrics.jsonl:102: data.val has other files from here on (800 bytes, checksum 0000000c, before 900 "
                "bytes, checksum 0000000a): val_loss is not comparable");
    write_run("cores-1", "aa", ON("aa", "1", "1e12"), 2, MFU("aa", "0.4"));
    write_run("cores-2", "bb", ON("bb", "2", "2e12"), 2, "");
    expect_line(command_run("report runs/cores-1 runs/cores-2")->out,
                "keys that differ\nmachine: threads        1                                   2\n\n");
    ck_assert_ptr_null(strstr(command_run("report runs/cores-1 runs/one")->out, "machine: "));
    /* Peaks that were measured apart: of one device they ought to be the same. */
    write_run("busy", "cc", ON("cc", "1", "4e11"), 2, MFU("cc", "1.36"));
    c = command_run("report runs/cores-1 runs/busy");
    expect_line(c->out, "MFU, median             40.0 % of 1 TFLOP/s                 136.0 % of 400 GFLOP/s\n");
    expect_says(c, "busy: mfu is above 100 %");
    expect_says(c, "busy: MFU is of a peak of 400 GFLOP/s, and that of cores-1 of 1 TFLOP/s");
    ck_assert_str_eq(command_run("report runs/cores-1 runs/cores-2")->err, "");
    unlink("two.html");
    expect_code(command_run("report runs/one runs/two --html two.html"), 0);
    expect_line(read_file("two.html"), "<tr><th>optimizer.lr</th><td>0.001</td><td>0.004</td></tr>");
    ck_assert_ptr_null(strstr(read_file("two.html"), "<th>job.name</th>"));
    c = command_run("report runs/one runs/two runs/one/metrics.jsonl");
    expect_code(c, 2);
    expect_says(c, "runs/one and runs/one/metrics.jsonl are one run: name each once");
}
END_TEST

/* A hundred thousand rows are a page of less than a megabyte. */
START_TEST(long_run)
{
    struct hd__text text = {0};
    struct stat st;
    hd__text_add(&text, START("cc", "0.001"));
    add_rows(&text, "cc", 1, 100000, 2);
    mkdir("runs", 0777);
    mkdir("runs/long", 0777);
    write_file("runs/long/metrics.jsonl", text.at);
    hd__text_free(&text);
    unlink("long.html");
    expect_code(command_run("report runs/long --html long.html"), 0);
    ck_assert(!stat("long.html", &st) && st.st_size < 1000000);
    const char *at =
        strstr(read_file("long.html"), ">gradient norm<"); /* which is 1.5, and so is each mean of 2,501 rows */
    ck_assert_ptr_nonnull(at);
    for (int line = 0; line < 2; line++) {
        double x, y, first = NAN;
        int n = 0, points = 0;
        at = strstr(at, "points=\"") + strlen("points=\"");
        for (; sscanf(at, "%lf,%lf %n", &x, &y, &n) == 2; at += n, points++) {
            first = points ? first : y;
            ck_assert_double_eq(y, first);
        }
        ck_assert_int_gt(points, 100);
    }
}
END_TEST

START_TEST(damaged_files)
{
    struct hd__text text = {0};
    struct command *c;
    mkdir("runs", 0777);
    mkdir("runs/bad", 0777);
    hd__text_add(&text, START("aa", "0.001"));
    add_rows(&text, "aa", 1, 10, 2);
    hd__text_add(&text, "{\"step\": 11, \"lo\n[1]\n{\"a\": 1}\n");
    add_rows(&text, "aa", 14, 20, 2);
    add_rows(&text, "aa", 19, 19, 2);
    hd__text_add(&text, "%s{\"step\": 21, \"loss\"", START("bb", "0.001"));
    write_file("runs/bad/metrics.jsonl", text.at);
    write_file("runs/bad/metrics.jsonl.2", text.at);
    write_file("runs/bad/report-20260101-000000.json", "{\"verdict\": {\"words\": \"rank 1 died\"}}");
    hd__text_free(&text);
    c = command_run("report runs/bad");
    expect_code(c, 0);
    expect_says(c, "runs/bad/metrics.jsonl:12: damaged: ");
    expect_says(c, "runs/bad/metrics.jsonl:13: damaged: no object: left out\n");
    expect_says(c, "runs/bad/metrics.jsonl:14: neither a step nor an event: left out\n");
    expect_says(c, "runs/bad/metrics.jsonl:15: the rows of steps 11 to 13 are missing\n");
    expect_says(c, "runs/bad/metrics.jsonl:22: step 19 after step 20: left out\n");
    expect_says(c, "runs/bad/metrics.jsonl:23: another run begins: what follows is not of the same run");
    expect_says(c, "runs/bad/metrics.jsonl:24: the last line is cut: left out");
    expect_says(c, "runs/bad/metrics.jsonl.2 beside it is of an earlier run, and not on this page");
    expect_line(c->out, "state                   at step 20 of 100; failure reports: 1\n");
    expect_line(c->out, "failed: rank 1 died (`heddle debug runs/bad/report-20260101-000000.json`)");
    unlink("bad.html");
    expect_code(command_run("report runs/bad --html bad.html"), 0);
    expect_line(read_file("bad.html"), "metrics.jsonl:24: the last line is cut");
    expect_line(read_file("bad.html"), "failed: rank 1 died");
}
END_TEST

/* metrics.every is smaller from a checkpoint on that had no row. */
START_TEST(rows_of_two_intervals)
{
    write_run("finer", "ee", START("ee", "0.001"), 2,
              "{\"event\": \"resume\", \"run\": \"00000000000000ee\", "
              "\"from_step\": 125, \"job\": {\"metrics\": {\"every\": 3}}}\n"
              "{\"step\": 126, \"loss\": 2, \"tokens\": 126000, \"run\": \"00000000000000ee\"}\n"
              "{\"step\": 132, \"loss\": 2, \"tokens\": 132000, \"run\": \"00000000000000ee\"}\n");
    struct command *c = command_run("report runs/finer");
    expect_code(c, 0);
    ck_assert_ptr_null(strstr(c->err, "to 123 are missing"));
    expect_says(c, "the rows of steps 129 to 129 are missing");
}
END_TEST

/* A save after a fault has no times. */
START_TEST(mean_of_saves)
{
    static char more[sizeof events + 128];
    snprintf(more, sizeof more, "%s%s", events,
             "{\"event\": \"checkpoint\", \"step\": 100, \"emergency\": true, \"run\": \"00000000000000aa\"}\n");
    write_run("saves", "aa", START("aa", "0.001"), 2, more);
    expect_line(command_run("report runs/saves")->out, "2, 2.5 s each, 500 ms exposed");
}
END_TEST

/* As a run leaves it that is to start, or that lost its beginning. */
START_TEST(runs_without_rows)
{
    struct command *c;
    write_file("start.jsonl", START("aa", "0.001"));
    expect_code(command_run("report start.jsonl"), 0);
    unlink("start.html");
    expect_code(command_run("report start.jsonl --html start.html"), 0);
    expect_line(read_file("start.html"), "at step 0 of 100");
    write_file("rest.jsonl", "{\"step\": 5, \"loss\": 2, \"step_s\": 1, \"run\": \"00000000000000aa\"}\n");
    c = command_run("report rest.jsonl");
    expect_code(c, 0);
    expect_says(c, "rest.jsonl: no line starts the run, so its job is unknown");
}
END_TEST

START_TEST(refused)
{
    static const char *const rows[][2] = {
        {"report", "no run given"},
        {"report nowhere", "nowhere is no run: No such file or directory"},
        {"report runs", "runs is no run: it has no metrics.jsonl"},
        {"report plain.txt", "plain.txt is no run: it has no line of heddle's metrics"},
        {"report empty.txt", "empty.txt is no run: it has no line of heddle's metrics"},
        {"report /dev/null", "not a regular file"},
        {"report runs/one --html", "--html needs a value"},
        {"report runs/one --html --html", "--html needs a value"},
        {"report runs/one --html -x", "--html wants a file"},
        {"report runs/one --html a.html --html b.html", "--html is given twice"},
        {"report runs/one --json", "there is no option --json"},
        {"report runs/one --html plain.txt", "plain.txt is there, and heddle did not write it"},
        {"report runs/one --html runs/one/metrics.jsonl", "heddle did not write it"},
        {"report runs/one --html nowhere/page.html", "nowhere/page.html: No such file or directory"},
        {"report nowhere --html fresh.html", "nowhere is no run"},
        {"report a b c d e f g h i", "more runs than fit on a page: name at most 8"}};
    write_run("one", "aa", START("aa", "0.001"), 2, "");
    write_file("plain.txt", "precious\n");
    write_file("empty.txt", "");
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i][0]);
        expect_code(c, 2);
        expect_says(c, rows[i][1]);
        ck_assert_str_eq(c->out, "");
    }
    struct command *full = command_run("report runs/one --html /dev/full");
    expect_code(full, 1);
    expect_says(full, "/dev/full: cannot be written: No space left on device");
    ck_assert_str_eq(read_file("plain.txt"), "precious\n");
    ck_assert_int_ne(access("fresh.html", F_OK), 0);
}
END_TEST

/* The file that a job writes, and its checkpoints. */
START_TEST(a_real_run)
{
    struct command *c;
    expect_code(command_run("train llama.yaml job.name=real job.steps=6 checkpoint.every=3 data.val_fraction=0.1 "
                            "eval.every=3 eval.batches=1"),
                0);
    expect_line(read_file("runs/real/metrics.jsonl"), "\"machine\":{\"processor\":\"");
    c = command_run("report runs/real");
    expect_code(c, 0);
    ck_assert_msg(!*c->err || strstr(c->err, "mfu is above 100 %"), "%s", c->err); /* the machine may be busy */
    expect_line(c->out, "checkpoints there       steps 3, 6\n");
    expect_line(c->out, "\nsaves                   2, ");
    expect_line(c->out, "state                   complete\n");
}
END_TEST

/* The part of a run's page that draws its trace. */
static char *timeline_of(const char *run)
{
    unlink("steps.html");
    expect_code(command_run("report runs/%s --html steps.html", run), 0);
    char *page = strstr(read_file("steps.html"), "<h2>Timeline</h2>");
    ck_assert_ptr_nonnull(page);
    *strstr(page, "<h2>Events") = 0;
    return page;
}

/* The steps of the trace, from a file or the newest of a schedule; without one the page says how to get it. */
START_TEST(steps_drawn)
{
    static const struct {
        const char *words, *says;
        int pictures;
    } rows[] = {
        {"", ": no step was traced; <code>heddle trace JOB --steps 20-24</code> traces some", 0},
        {"metrics.trace=drawn.json", ": steps 3 to 5, ", 2},
        {"metrics.trace={\"file\":\"drawn.json\",\"schedule\":{\"wait\":1,\"active\":1}}", ": step 6, ", 1},
        {"metrics.trace={\"file\":\"gone.json\",\"steps\":2}", ": there is no gone.json; <code>heddle trace", 0},
    };
    char run[32];
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        snprintf(run, sizeof run, "drawn%zu", i);
        expect_code(command_run("train llama.yaml job.name=%s job.steps=6 mesh.dp=2 %s", run, rows[i].words), 0);
        unlink("gone.json");
        const char *page = timeline_of(run);
        expect_line(page, rows[i].says);
        ck_assert_int_eq(count(page, ">rank 0 compute<"), rows[i].pictures);
        ck_assert_int_eq(count(page, ">rank 1 compute<"), rows[i].pictures);
        if (!rows[i].pictures) {
            ck_assert_int_eq(count(page, "<rect"), 0);
            continue;
        }
        expect_line(page, ">dp_shard<");
        expect_line(page, rows[i].pictures > 1 ? ">step 4<" : ">step 6<");
        ck_assert_int_gt(count(page, "fill=\"#56b4e9\""), 2); /* forward, on both ranks and in the legend */
        ck_assert_int_gt(count(page, "fill=\"#e69f00\""), 2);
        ck_assert_int_gt(count(page, "fill=\"#a0468c\"") + count(page, "fill=\"#d55e00\""), 1); /* reductions */
        ck_assert_int_eq(count(page, "currentColor") + count(page, "var(--"), 0);
    }
    /* from another folder */
    ck_assert_int_eq(chdir("runs"), 0);
    expect_code(command_run("report drawn1 --html ../steps.html"), 0);
    ck_assert_int_eq(chdir(".."), 0);
    expect_line(read_file("steps.html"), ": steps 3 to 5, ");
    /* that of heddle trace, and not an older one or another job's */
    expect_code(command_run("trace llama.yaml job.name=drawn0 job.steps=9 mesh.dp=2 --steps 7-8"), 0);
    expect_line(timeline_of("drawn0"), ": steps 7 to 8, ");
    expect_line(timeline_of("drawn0"), ", of runs/drawn0/trace/trace.json<");
    expect_code(command_run("train llama.yaml job.name=drawn1 job.steps=6 metrics.trace=shared.json"), 0);
    expect_code(command_run("train llama.yaml job.name=other job.steps=6 metrics.trace=shared.json"), 0);
    expect_line(timeline_of("drawn1"), ": shared.json is of the job other; <code>heddle trace");
    expect_code(command_run("trace llama.yaml job.name=drawn1 job.steps=9 --steps 2"), 0);
    expect_code(command_run("train llama.yaml job.name=other job.steps=6 metrics.trace=shared.json"), 0);
    expect_line(timeline_of("drawn1"), ": step 2, ");
}
END_TEST

#define TRACE_BEGINS "{\"otherData\":{\"measured\":1,\"job\":\"run-aa\"},\"traceEvents\":["
#define STEP(ts, dur)                                                                                                  \
    "{\"name\":\"step 1\",\"cat\":\"step\",\"ph\":\"X\",\"ts\":" ts ",\"dur\":" dur ",\"pid\":0,\"args\":{\"step\":1}" \
    "}"

static void add_event(struct hd__text *text, const char *name, const char *category, int at, int rank, int thread)
{
    hd__text_add(
        text, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%d,\"dur\":1,\"pid\":%d,\"tid\":%d,\"args\":{}}",
        name, category, at, rank, thread);
}

/* Every microsecond another instruction, on more ranks than are drawn: merged, and no page of any size. */
START_TEST(steps_bounded)
{
    enum { FIRST = 7, RANKS = 18, LENGTH = 1520 };
    struct hd__text text = {0};
    write_run("many", "aa", START("aa", "0.001"), 2, "");
    mkdir("runs/many/trace", 0777);
    hd__text_add(&text, TRACE_BEGINS STEP("0", "1520"));
    for (int rank = FIRST; rank < FIRST + RANKS; rank++)
        for (int thread = 1; thread < 3; thread++) {
            hd__text_add(&text,
                         ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                         rank, thread, thread == 1 ? "compute" : "copies<&");
            for (int at = 0; at < LENGTH; at++)
                add_event(&text, thread == 1 ? at % 2 ? "feed" : "einsum" : "copy", at % 3 ? "F" : "W", at, rank,
                          thread);
        }
    hd__text_add(&text, "]}");
    write_file("runs/many/trace/trace.json", text.at);
    hd__text_free(&text);
    const char *page = timeline_of("many");
    int n = count(page, "<rect");
    ck_assert_msg(n > 1000 && n < 4100, "%d rectangles", n);
    ck_assert_int_eq(count(page, "<rect") - count(page, "fill=\"#f2f2f2\"") - count(page, "0 0 12 12"),
                     atoi(strstr(page, "transfers in ") + strlen("transfers in ")));
    expect_line(page, "48640 instructions and transfers in ");
    expect_line(page, " The first 16 of 18 ranks are drawn.");
    expect_line(page, ">rank 22 compute<");
    expect_line(page, ">copies&lt;&amp;<");
    expect_line(page, "</svg> compute waits for data<");
    expect_line(page, "</svg> other transfers<");
    ck_assert_ptr_null(strstr(page, ">rank 23 compute<"));
}
END_TEST

START_TEST(steps_damaged)
{
    static const char *const rows[][2] = {
        {"{\"otherData\":{\"mea", "runs/torn/trace/trace.json is not a measured trace of heddle's"},
        {"{\"traceEvents\":[]}", "is not a measured trace of heddle's"},
        {"{\"otherData\":{\"measured\":1,\"job\":\"<b>\"},\"traceEvents\":[]}", "is of the job &lt;b&gt;;"},
        {TRACE_BEGINS "]}", "has no whole step"},
        {TRACE_BEGINS STEP("5", "0") "]}", "has no whole step"},
        {TRACE_BEGINS STEP("-1e308", "1.5e308") "," STEP("1e308", "1e307") "]}", "has no whole step"},
        {TRACE_BEGINS STEP("5", "0") ",{\"cat\":\"step\",\"ts\":7,\"args\":{\"step\":2}}]}",
         ": steps 1 to 2, 2 us, and the longest of them, step 1, 0 us"},
        {TRACE_BEGINS "5,null,[],{\"ph\":\"X\",\"ts\":\"x\",\"pid\":{}}," STEP("5", "9") "]}",
         "0 instructions and transfers in 0 rectangles"}};
    write_run("torn", "aa", START("aa", "0.001"), 2, "");
    mkdir("runs/torn/trace", 0777);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        write_file("runs/torn/trace/trace.json", rows[i][0]);
        const char *page = timeline_of("torn");
        expect_line(page, rows[i][1]);
        ck_assert(!strstr(page, "nan") && !strstr(page, "inf"));
    }
    ck_assert_int_eq(truncate("runs/torn/trace/trace.json", (64 << 20) + 1), 0);
    expect_line(timeline_of("torn"), "is larger than 64 MiB: trace fewer steps or ranks");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"text page", text_page, 1},
                                        {"HTML page", html_page, 1},
                                        {"runs compared", runs_compared, 1},
                                        {"long run", long_run, 1},
                                        {"damaged files", damaged_files, 1},
                                        {"runs without rows", runs_without_rows, 1},
                                        {"mean of saves", mean_of_saves, 1},
                                        {"rows of two intervals", rows_of_two_intervals, 1},
                                        {"refused", refused, 1},
                                        {"a real run", a_real_run, 1},
                                        {"steps drawn", steps_drawn, 1},
                                        {"steps bounded", steps_bounded, 1},
                                        {"steps damaged", steps_damaged, 1},
                                        {NULL, NULL, 0}};
    return system_run("report", tests);
}
