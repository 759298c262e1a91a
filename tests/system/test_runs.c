/* Runs do not mix: a folder has one job at a time and one run's checkpoints, and no file is overwritten that is not of
 * this run. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

static struct curve some;

#define ENDLESS "llama.yaml job.steps=1000000000 "

/* A command that ends with this code and says these words on stderr. */
static struct command *run_says(int code, const char *says, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static struct command *run_says(int code, const char *says, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    struct command *c = command_run("%s", line);
    expect_code(c, code);
    expect_says(c, says);
    return c;
}

static json_t *index_of(const char *checkpoint)
{
    char path[128];
    snprintf(path, sizeof path, "%s/index.json", checkpoint);
    json_t *index = json_loads(read_file(path), 0, NULL);
    ck_assert_ptr_nonnull(index);
    return index;
}

/* The run of a checkpoint: 16 hexadecimal digits. */
static const char *run_of(const char *checkpoint)
{
    json_t *index = index_of(checkpoint);
    const char *run = keep(hd__strdup(json_string_value(json_object_get(index, "run"))));
    ck_assert_msg(strlen(run) == 16 && strspn(run, "0123456789abcdef") == 16, "%s", run);
    json_decref(index);
    return run;
}

/* Every line of the metrics is of this run; returns how many there are, without those of saves and alarms. */
static int expect_lines_of(const char *path, const char *run)
{
    char *text = read_file(path);
    int n = 0;
    for (char *line; (line = strsep(&text, "\n")) && *line; n++) {
        json_t *object = json_loads(line, 0, NULL);
        const char *of = json_string_value(json_object_get(object, "run"));
        const char *event = json_string_value(json_object_get(object, "event"));
        ck_assert_msg(of && !strcmp(of, run), "line %d of %s is of %s, not of %s", n + 1, path, of, run);
        n -= event && (!strcmp(event, "checkpoint") || !strcmp(event, "alarm"));
        json_decref(object);
    }
    return n;
}

/* The names of a folder's checkpoints, "8 12 ". */
static const char *steps_in(const char *dir)
{
    struct hd__text text = {0};
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort);
    hd__text_add(&text, "%s", "");
    for (int i = 0; i < n; i++) {
        if (!strncmp(entries[i]->d_name, "step-", 5))
            hd__text_add(&text, "%d ", atoi(entries[i]->d_name + 5));
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return keep(text.at);
}

/* ---- one job in a folder */

/* `job` runs with these words; `second` is refused by name, touches nothing. */
static void expect_locked(const char *job, const char *words, const char *second, const char *folder)
{
    char says[128], *before;
    struct command *c = command_start(NULL, "train " ENDLESS "job.name=%s %s", job, words), *other;
    curve_wait(job, 3);
    snprintf(says, sizeof says, "%s/.heddle-lock", folder);
    before = read_file(says);
    snprintf(says, sizeof says, "%s is in use by process ", folder);
    other = run_says(2, says, "train llama.yaml job.steps=2 %s", second);
    expect_says(other, " UTC, run ");
    snprintf(says, sizeof says, "%s/.heddle-lock", folder);
    ck_assert_str_eq(before, read_file(says));
    kill(c->pid, SIGKILL);
    command_wait(c, 10);
}

START_TEST(two_jobs)
{
    struct command *c;
    expect_locked("dup", "checkpoint={}", "job.name=dup job.seed=9", "runs/dup");
    expect_code(command_run("train llama.yaml job.name=dup job.steps=2"), 0); /* the dead have no lock */
    expect_locked("pair", "mesh.dp=2", "job.name=pair mesh.dp=2", "runs/pair");
    expect_locked("owner", "checkpoint.dir=shared", "job.name=dup2 checkpoint.dir=shared", "shared");
    ck_assert_int_eq(access("runs/dup2/metrics.jsonl", F_OK), -1);

    /* Looking needs no lock. */
    c = command_start(NULL, "train " ENDLESS "job.name=seen checkpoint.every=2 data.val_fraction=0.1");
    curve_wait("seen", 10);
    expect_code(command_run("ckpt ls llama.yaml job.name=seen checkpoint={}"), 0);
    expect_code(command_run("train llama.yaml job.name=seen --dry-run"), 0);
    kill(c->pid, SIGKILL);
    command_wait(c, 10);

    /* Metrics elsewhere are locked themselves. */
    c = command_start(NULL, "train " ENDLESS "job.name=a metrics.jsonl=runs/m/metrics.jsonl");
    curve_wait("m", 3);
    run_says(2, "metrics.jsonl: runs/m/metrics.jsonl: another process is writing it",
             "train llama.yaml job.name=b metrics.jsonl=runs/m/metrics.jsonl");
    kill(c->pid, SIGKILL);
    command_wait(c, 10);
}
END_TEST

/* A run goes on by the name of its folder, which it locks anew, unless another has it. */
START_TEST(renamed_folder)
{
    struct command *c = command_start(NULL, "train " ENDLESS "job.name=shifted checkpoint.every=20");
    curve_wait("shifted", 3);
    ck_assert_int_eq(rename("runs/shifted", "runs/aside"), 0);
    for (double until = hd__now() + 60; access("runs/shifted/checkpoints/.heddle-lock", F_OK) && hd__now() < until;)
        usleep(10000);
    run_says(2, "runs/shifted is in use by process ", "train llama.yaml job.name=shifted job.steps=2");
    write_file("other-lock", "");
    ck_assert_int_eq(rename("other-lock", "runs/shifted/.heddle-lock"), 0);
    command_wait(c, 60);
    expect_code(c, 1);
    expect_says(c, "warning: runs/shifted was renamed or removed, or its .heddle-lock was: it is locked again");
    expect_says(c, "error: runs/shifted is no longer the folder that this run locked: ");
}
END_TEST

/* ---- the id of a run */

START_TEST(ids)
{
#define KEPT "llama.yaml checkpoint.dir=kept checkpoint.every=4 checkpoint.keep=2 checkpoint.async=false "
    const char *first, *second, *third;
    struct command *c;
    train(&some, "kept", KEPT "job.steps=16");
    first = run_of("kept/step-00000016");
    ck_assert_str_eq(run_of("kept/step-00000012"), first);
    ck_assert_int_eq(expect_lines_of("runs/kept/metrics.jsonl", first), 17);
    train(&some, "kept", KEPT "mesh.dp=2 job.steps=20"); /* goes on: the same run, and the same file */
    ck_assert_str_eq(run_of("kept/step-00000020"), first);
    ck_assert_int_eq(expect_lines_of("runs/kept/metrics.jsonl", first), 22);
    ck_assert_int_eq(access("runs/kept/metrics.jsonl.1", F_OK), -1);

    /* Another run: refused, or with a place of its own; what there was stays. */
    c = run_says(2,
                 "command line: checkpoint.resume is never, and kept has checkpoints of another run, to "
                 "step-00000020: take another job.name, or checkpoint.resume=overwrite, which moves them to kept.1",
                 "train " KEPT "job.name=kept job.steps=8 checkpoint.resume=never mesh.dp=2");
    ck_assert_msg(!strstr(c->err, "rank 1"), "rank 0 alone says it:\n%s", c->err);
    c = run_says(0, "kept: 2 checkpoints of another run moved to kept.1",
                 "train " KEPT "job.name=kept job.steps=8 checkpoint.every=2 checkpoint.resume=overwrite");
    expect_says(c, "runs/kept/metrics.jsonl belongs to another run; renamed to runs/kept/metrics.jsonl.1");
    second = run_of("kept/step-00000008");
    ck_assert_str_ne(second, first);
    ck_assert_str_eq(steps_in("kept"), "6 8 ");
    ck_assert_str_eq(steps_in("kept.1"), "16 20 ");
    ck_assert_int_eq(expect_lines_of("runs/kept/metrics.jsonl", second), 9);
    ck_assert_int_eq(expect_lines_of("runs/kept/metrics.jsonl.1", first), 22);
    c = command_run("ckpt ls " KEPT);
    ck_assert_msg(strstr(c->out, second) && !strstr(c->out, first), "it listed: %s", c->out);
    c = command_run("train " KEPT "job.name=kept job.steps=9 checkpoint.keep=0"); /* the new one's */
    ck_assert_msg(strstr(c->out, "resuming from step 8 of kept: "), "it said: %s", c->out);

    /* A branch: what is newer than where it begins is another run's; older ones stay, also with keep. */
    run_says(0, "kept: 2 checkpoints of another run moved to kept.2",
             "train " KEPT "job.name=kept job.steps=12 checkpoint.every=1 checkpoint.resume=step-00000006");
    third = run_of("kept/step-00000012");
    ck_assert_str_ne(third, second);
    ck_assert_str_eq(steps_in("kept"), "6 11 12 ");
    ck_assert_str_eq(steps_in("kept.2"), "8 9 ");
    ck_assert_str_eq(run_of("kept/step-00000006"), second);
    ck_assert_int_eq(expect_lines_of("runs/kept/metrics.jsonl", third), 7);
    /* By its name or path, the newest is what `auto` takes. */
    train(&some, "kept", KEPT "job.steps=13 checkpoint.resume=./kept/step-00000012");
    ck_assert_str_eq(run_of("kept/step-00000013"), third);
    /* From another folder it is always another run. */
    train(&some, "branch", "llama.yaml checkpoint.dir=branch checkpoint.resume=kept/step-00000013 job.steps=14");
    ck_assert_str_ne(run_of("branch/step-00000014"), third);
    ck_assert_str_eq(steps_in("kept"), "6 12 13 ");
}
END_TEST

/* Without a checkpoint there is nothing to go on from: each is a run. */
START_TEST(runs_without_checkpoints)
{
    train(&some, "plain", "llama.yaml job.steps=3");
    char *first = read_file("runs/plain/metrics.jsonl");
    train(&some, "plain", "llama.yaml job.steps=4");
    ck_assert_int_eq(some.n, 4);
    train(&some, "plain", "llama.yaml job.steps=5");
    ck_assert_str_eq(read_file("runs/plain/metrics.jsonl.1"), first);
    ck_assert_int_eq(access("runs/plain/metrics.jsonl.2", F_OK), 0);
}
END_TEST

/* Checkpoints and metrics as they were before there were ids: they resume, and are never deleted. */
START_TEST(before_there_were_ids)
{
#define OLD "llama.yaml checkpoint.dir=old checkpoint.keep=1 "
    json_t *index;
    char sum[17], *text, *metrics;
    train(&some, "old", OLD "job.steps=4");
    index = index_of("old/step-00000004");
    json_object_del(index, "run");
    json_object_del(index, "checksum");
    text = json_dumps(index, JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hd__hash(text, strlen(text), 0));
    json_object_set_new(index, "checksum", json_string(sum));
    ck_assert_int_eq(json_dump_file(index, "old/step-00000004/index.json", 0), 0);
    free(text);
    json_decref(index);
    metrics = read_file("runs/old/metrics.jsonl");
    for (char *run; (run = strstr(metrics, "\"run\":")) != NULL;)
        memcpy(run, "\"old\":", 6);
    write_file("runs/old/metrics.jsonl", metrics);
    train(&some, "old", OLD "job.steps=6");
    ck_assert_int_eq(some.n, 6);
    ck_assert_int_eq(access("runs/old/metrics.jsonl.1", F_OK), -1);
    train(&some, "old", OLD "job.steps=8");
    ck_assert_int_eq(some.n, 8);
    ck_assert_str_eq(steps_in("old"), "4 8 ");
    run_of("old/step-00000008");
}
END_TEST

/* ---- files that are not ours */

START_TEST(foreign_metrics)
{
    static const struct {
        const char *make, *words, *says, *victim;
    } rows[] = {
        {"printf 'notes\\n' >notes.txt", "metrics.jsonl=notes.txt", "notes.txt: its first line does not start a run",
         "notes.txt"},
        {"printf '{\"step\": 1}\\n' >rows.jsonl", "metrics.jsonl=rows.jsonl", "its first line does not start",
         "rows.jsonl"},
        {"cp llama.yaml mine.yaml", "metrics.jsonl=mine.yaml", "mine.yaml: its first line does not start", "mine.yaml"},
        {":", "metrics.jsonl=corpus.txt", "corpus.txt is a file of the job's data", "corpus.txt"},
        {"cp corpus.txt c2.txt; ln c2.txt c3.txt", "data.train=c2.txt metrics.jsonl=c3.txt",
         "c3.txt is a file of the job's data", "c2.txt"},
        {"printf 'victim\\n' >victim.txt; ln -s victim.txt link.jsonl", "metrics.jsonl=link.jsonl",
         "link.jsonl: a symbolic link: name the file itself", "victim.txt"},
        {"mkfifo fifo", "metrics.jsonl=fifo", "fifo: not a regular file", NULL},
        {"mkdir folder", "metrics.jsonl=folder", "folder: Is a directory", NULL},
        {":", "metrics.jsonl=s3://bucket/m.jsonl", "metrics.jsonl: 's3://bucket/m.jsonl' is a URL", NULL},
        {":", "metrics.tensorboard=s3://bucket", "metrics.tensorboard: 's3://bucket' is a URL", NULL},
        {":", "metrics.blocks=s3://bucket/b.csv", "metrics.blocks: 's3://bucket/b.csv' is a URL", NULL},
        {"cp llama.yaml b.csv", "metrics.blocks=b.csv", "metrics.blocks: b.csv is there, and heddle did not write it",
         "b.csv"},
        {"mkdir -p runs/l1 && mkfifo runs/l1/.heddle-lock", "job.name=l1", "runs/l1/.heddle-lock: not a regular file",
         NULL},
        {"mkdir -p runs/l2 && printf 'mine\\n' >mine.txt && ln -s ../../mine.txt runs/l2/.heddle-lock", "job.name=l2",
         "runs/l2/.heddle-lock: a symbolic link: remove it", "mine.txt"},
        {":", "checkpoint.dir=gs://bucket/x", "there is no plugin ckpt-gs", NULL},
        {":", "data.train=s3://bucket/x",
         "data.train: 's3://bucket/x' is a URL, and only http:// and https:// are read", NULL},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        ck_assert_int_eq(system(rows[i].make), 0);
        char *before = rows[i].victim ? read_file(rows[i].victim) : NULL;
        struct command *c = run_says(2, rows[i].says, "train llama.yaml job.steps=1 %s", rows[i].words);
        expect_says(c, "command line: ");
        if (before)
            ck_assert_str_eq(read_file(rows[i].victim), before);
    }
    ck_assert_int_eq(access("s3:", F_OK), -1);
    ck_assert_int_eq(access("gs:", F_OK), -1);
    /* Also where a run resumes: its lines are not cut. */
    train(&some, "resumed", "llama.yaml checkpoint={} job.steps=2");
    ck_assert_int_eq(system("sed -i 1d runs/resumed/metrics.jsonl"), 0); /* logrotate's copytruncate: rows alone */
    run_says(0, "runs/resumed/metrics.jsonl was truncated by another process; renamed to runs/resumed/metrics.jsonl.1",
             "train llama.yaml job.name=resumed checkpoint={} job.steps=3");
    write_file("runs/resumed/metrics.jsonl", "a letter\n");
    run_says(2, "runs/resumed/metrics.jsonl: its first line does not start a run",
             "train llama.yaml job.name=resumed checkpoint={} job.steps=4");
    ck_assert_str_eq(read_file("runs/resumed/metrics.jsonl"), "a letter\n");
}
END_TEST

/* ---- what is said */

/* Lines about what is trained, on what and where, and about what came of it. */
START_TEST(start_and_end)
{
    char wanted[256];
    train(&some, "told", "llama.yaml checkpoint.dir=told job.steps=4 mesh.dp=2");
    struct command *c = command_run("train llama.yaml job.name=told checkpoint.dir=told job.steps=6 mesh.dp=2");
    snprintf(wanted, sizeof wanted,
             "run %s, resuming from step 4 of told: 106,816 parameters, 256 tokens a step, 1,536 in 6 steps\n"
             "2 ranks (dp_shard 2), device cpu, fp32\n",
             run_of("told/step-00000004"));
    ck_assert_msg(!strncmp(c->out, wanted, strlen(wanted)), "it said: %s, not: %s", c->out, wanted);
    ck_assert_ptr_nonnull(strstr(c->out, "\ntransports: dp_shard shm\nrun folder: runs/told\n"));
    ck_assert_ptr_nonnull(strstr(c->out, "\ntrained to step 6: 512 tokens in "));
    static const char *const kinds[] = {" a rank: parameters ", ", gradients ", ", optimizer ", ", activations ",
                                        ", buffers "};
    const char *arena = strstr(c->out, "\narena ");
    for (size_t i = 0; i < HD__COUNT(kinds); i++) {
        arena = arena ? strstr(arena, kinds[i]) : NULL;
        ck_assert_msg(arena && arena < strstr(c->out, "\ntransports: "), "no%s: %s", kinds[i], c->out);
    }
    ck_assert_ptr_nonnull(strstr(c->out, "\ncheckpoint: told/step-00000006\n"));
    ck_assert_ptr_null(strstr(c->out, "best val_loss"));
    for (const char *at = c->out; *at; at++)
        ck_assert_msg((unsigned char)*at >= ' ' || *at == '\n', "a control code %d in a file", *at);
    c = command_run("train llama.yaml job.name=told checkpoint.dir=told job.steps=7"); /* on another mesh */
    ck_assert_ptr_nonnull(strstr(c->out, ", resuming from step 6 of told, saved on dp_shard 2: "));
    c = command_run("train llama.yaml job.name=told checkpoint.dir=told job.steps=8 mesh.dp=2");
    ck_assert_ptr_nonnull(strstr(c->out, ", resuming from step 7 of told, saved on 1 rank: "));
    c = command_run("train llama.yaml job.name=untold job.steps=1 eval.every=1 data.val_fraction=0.1");
    ck_assert_ptr_nonnull(strstr(c->out, ", best val_loss "));
    ck_assert_ptr_nonnull(strstr(c->out, " at step 1\n"));
    ck_assert(strstr(c->out, "  grad_norm ") && strstr(c->out, "  mem ") && strstr(c->out, "  eta 0m00s\n"));
    ck_assert_ptr_null(strstr(c->out, "transports: "));
    ck_assert_ptr_nonnull(strstr(c->out, ", from scratch: "));
    ck_assert_ptr_nonnull(strstr(c->out, "\n1 rank, device cpu, fp32\n"));
    ck_assert_ptr_nonnull(strstr(c->out, "\nnothing is saved: the job has no checkpoint section\n"));
    const char *first = strstr(c->out, "\nnothing is saved: the job has no checkpoint section (`checkpoint: {}`");
    ck_assert(first && first < strstr(c->out, "\nstep 1/1"));
}
END_TEST

/* The base of a run is loaded once. */
START_TEST(another_base)
{
#define FROM "model={\"use\":\"transformer\",\"from\":\"%s\"} "
    train(&some, "seed", "llama.yaml checkpoint={} job.steps=1");
    expect_code(command_run("ckpt export llama.yaml job.name=seed checkpoint={} --to base"), 0);
    ck_assert_int_eq(system("cp -r base other"), 0);
    struct command *c = command_run("train llama.yaml job.name=tuned checkpoint={} job.steps=2 " FROM, "base");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, ", from base: "));
    c = command_run("train llama.yaml job.name=tuned checkpoint={} job.steps=3 " FROM, "base");
    ck_assert_ptr_null(strstr(c->err, "was not loaded"));
    run_says(0,
             "warning: command line: checkpoint step-00000003 is of a run that began from model.from=base; "
             "model.from=other was not loaded: for a run from there take another job.name, or "
             "checkpoint.resume=overwrite",
             "train llama.yaml job.name=tuned checkpoint={} job.steps=4 " FROM, "other");
    run_says(0, "model.from=base was not loaded", "train llama.yaml job.name=seed checkpoint={} job.steps=2 " FROM,
             "base");
}
END_TEST

/* Another job in the same folder goes on, and says whose checkpoint it is; one that is named by hand is meant. */
START_TEST(another_job)
{
#define SECOND "train llama.yaml checkpoint.dir=common job.name=second "
    const char *whose = "warning: command line: checkpoint step-00000002 of common was saved by job first, and this is "
                        "second: take another checkpoint.dir, or checkpoint.resume=overwrite; a branch of it says "
                        "checkpoint.resume=common/step-00000002",
               *done = "was saved by job first, and this is second, which has nothing left to train then: take another";
    train(&some, "first", "llama.yaml checkpoint.dir=common job.steps=2");
    ck_assert_ptr_null(strstr(command_run("train llama.yaml checkpoint.dir=common job.name=first job.steps=2")->err,
                              "was saved by job"));
    run_says(0, done, SECOND "job.steps=2");
    run_says(0, done, SECOND "job.steps=2 --dry-run");
    run_says(0, whose, SECOND "job.steps=3 --dry-run");
    struct command *c = command_run(SECOND "job.steps=3 checkpoint.resume=step-00000002 --dry-run");
    ck_assert_msg(c->code == 0 && !strstr(c->err, "was saved by job"), "exit code %d; it said:\n%s", c->code, c->err);
    c = command_run("eval llama.yaml checkpoint.dir=common job.name=second data.val_fraction=0.1 eval.batches=1");
    ck_assert_msg(c->code == 0 && !strstr(c->err, "was saved by job"), "exit code %d; it said:\n%s", c->code, c->err);
    c = run_says(0, whose, SECOND "job.steps=3");
    ck_assert_msg(strstr(c->out, "resuming from step 2 of common: "), "it said: %s", c->out);
    c = command_run(SECOND "job.steps=4"); /* its own by now */
    ck_assert_msg(c->code == 0 && !strstr(c->err, "was saved by job"), "exit code %d; it said:\n%s", c->code, c->err);
}
END_TEST

/* Checkpoints of the run before stay where they were, and it begins anew elsewhere. */
START_TEST(another_folder)
{
    train(&some, "moved", "llama.yaml checkpoint={} job.steps=2");
    run_says(0,
             "warning: command line: checkpoint.dir: elsewhere has no checkpoint, and the run of "
             "runs/moved/metrics.jsonl before this one saved step 2 in runs/moved/checkpoints: to go on from there, "
             "set checkpoint.dir=runs/moved/checkpoints or move the checkpoints to elsewhere",
             "train llama.yaml job.name=moved checkpoint.dir=elsewhere job.steps=3");
    struct command *c = command_run("train llama.yaml job.name=moved checkpoint.dir=elsewhere job.steps=4");
    ck_assert_msg(c->code == 0 && !strstr(c->err, "before this one"), "exit code %d; it said:\n%s", c->code, c->err);
    c = command_run("train llama.yaml job.name=moved checkpoint.dir=third checkpoint.resume=never job.steps=3");
    ck_assert_msg(c->code == 0 && !strstr(c->err, "before this one"), "exit code %d; it said:\n%s", c->code, c->err);
}
END_TEST

/* Checkpoints near the folder that was named, and newer ones of another. */
START_TEST(folders_near)
{
    command_run("train llama.yaml job.name=near checkpoint={} job.steps=2");
    ck_assert(!system("mkdir -p proj/runs && cp llama.yaml proj && mv runs/near proj/runs/"));
    run_says(
        0,
        "checkpoint.dir: runs/near/checkpoints has no checkpoint, and training begins at step 0; "
        "proj/runs/near/checkpoints has some: relative paths are relative to the working directory: run heddle in proj",
        "train proj/llama.yaml job.name=near checkpoint={} job.steps=2 --dry-run");
    run_says(2, "no checkpoint in runs/near/checkpoints; proj/runs/near/checkpoints has some",
             "ckpt export proj/llama.yaml job.name=near checkpoint={} --to none");
    run_says(2, "no checkpoint in proj/runs/near; proj/runs/near/checkpoints has some: say checkpoint.dir=proj/runs/",
             "sample llama.yaml checkpoint.dir=proj/runs/near");
    command_run("train llama.yaml job.name=once checkpoint={} job.steps=2");
    command_run("train llama.yaml job.name=once checkpoint.dir=big job.steps=4");
    static const char *const later[] = {"train llama.yaml job.steps=3", "train llama.yaml job.steps=3 --dry-run",
                                        "sample llama.yaml --tokens 1", "ckpt export llama.yaml --to near"};
    for (size_t i = HD__COUNT(later); i--;)
        run_says(0,
                 "checkpoint.dir: the newest checkpoint of runs/once/checkpoints is of step 2, and the last run of "
                 "runs/once/metrics.jsonl saved step 4 in big: checkpoint.dir=big uses that one",
                 "%s job.name=once checkpoint={}", later[i]);
    struct command *c = command_run("sample llama.yaml job.name=once checkpoint.dir=big --tokens 1");
    ck_assert_msg(!c->code && !strstr(c->err, "checkpoint"), "%s", c->err);
}
END_TEST

START_TEST(another_optimizer)
{
    train(&some, "adam", "llama.yaml checkpoint={} job.steps=2");
    run_says(
        0,
        "warning: command line: the optimizer state of checkpoint step-00000002 is discarded (exp_avg, "
        "exp_avg_sq): optimizer.use was adamw",
        "train llama.yaml job.name=adam checkpoint={} job.steps=3 optimizer={\"use\":\"sgd\",\"lr\":0.1} --dry-run");
    run_says(0,
             "warning: command line: the optimizer state of checkpoint step-00000002 is discarded (exp_avg, "
             "exp_avg_sq): optimizer.use was adamw",
             "train llama.yaml job.name=adam checkpoint={} job.steps=3 optimizer={\"use\":\"sgd\",\"lr\":0.1}");
}
END_TEST

START_TEST(newest_of_another_job)
{
#define MINE "llama.yaml checkpoint={} data.val_fraction=0.1 eval.batches=1 job.name=mine"
    train(&some, "mine", "llama.yaml checkpoint={} job.steps=2");
    train(&some, "theirs", "llama.yaml checkpoint={} job.steps=4");
    struct command *c = command_run("eval " MINE);
    ck_assert_msg(!c->code && !strstr(c->err, "saved it"), "%s", c->err);
    ck_assert(!system("cp -r runs/theirs/checkpoints/step-00000004 runs/mine/checkpoints/ && { cat llama.yaml && echo "
                      "'checkpoint: {dir: runs/theirs/checkpoints}'; } > copied.yaml"));
    run_says(
        0,
        "command line: step-00000004 is the newest checkpoint of runs/mine/checkpoints, and job theirs saved it; the "
        "newest of job mine is step-00000002: --checkpoint step-00000002 takes it",
        "eval " MINE);
    run_says(0, "step-00000004 of runs/theirs/checkpoints was saved by job theirs, and this is job copied",
             "eval copied.yaml data.val_fraction=0.1 eval.batches=1");
}
END_TEST

/* Stopped with a choice of checkpoint that would not go on: it says what would. */
START_TEST(stopped_overwriting)
{
    struct command *c = command_start(NULL, "train " ENDLESS "job.name=again checkpoint.resume=overwrite");
    curve_wait("again", 3);
    kill(c->pid, SIGTERM);
    command_wait(c, 20);
    expect_code(c, 3);
    expect_says(c, "the state is saved: checkpoint.resume=auto goes on");
    c = command_run_env("SLURM_RESTART_COUNT=1", "train " ENDLESS "job.name=again checkpoint.resume=overwrite");
    expect_code(c, 2);
    expect_says(c,
                "checkpoint.resume is overwrite, and this is a start again (SLURM_RESTART_COUNT is 1), which would ");
}
END_TEST

/* Mistakes around a run that has ended. */
START_TEST(after_its_end)
{
#define ENDED "job.name=ended checkpoint={} "
    static const struct {
        int code;
        const char *words, *said;
    } rows[] = {
        {0, "train llama.yaml " ENDED "job.steps=8 job.seed=2",
         "the job is finished: its checkpoint is at step 8 of 8; set job.steps higher to go on, or "
         "checkpoint.resume=overwrite to train anew"},
        {0, "train llama.yaml " ENDED "job.steps=4",
         "the job is finished: its checkpoint is at step 8, and the job ends at 4; set job.steps higher to go on, or "
         "checkpoint.resume=overwrite"},
        {0, "train llama.yaml " ENDED "job.steps=4 --dry-run", "its checkpoint is at step 8, and the job ends at 4; "},
        {0, "train llama.yaml job.name=anew checkpoint.resume=runs/ended/checkpoints/step-00000008 job.steps=8",
         "set job.steps higher to go on, or begin at step 0 with its weights: `heddle ckpt export`, then model.from"},
        {0, "train llama.yaml " ENDED "job.steps=12 schedule.kind=cosine --dry-run",
         "job.steps is 12 and was 8 when checkpoint step-00000008 was saved: the schedule now ends there, so the "
         "learning rate at step 8 is "},
        {2, "train llama.yaml job.name=other checkpoint.resume=runs/ended/checkpoints",
         "is a folder of checkpoints: name one of them, as runs/ended/checkpoints/step-00000008"},
        {0, "ckpt export llama.yaml " ENDED "model.rope_theta=500000 --to exported",
         "model.rope_theta is 500000.0 and was 10000.0 when checkpoint step-00000008 was saved: these weights were not "
         "trained with it"},
        {0, "eval llama.yaml " ENDED "data.val_fraction=0.2 data.seq_len=64 eval.batches=1",
         "data.seq_len is 64 and was 32 when checkpoint step-00000008 was saved: its run did not train positions from "
         "32 on"},
        {2, "ckpt ls runs", "runs is a folder of runs: name one of them, as runs/"},
        {2, "ckpt prune llama.yaml " ENDED "checkpoint.keep=0", "checkpoint.keep is 0, which keeps all: say how many"},
        {0, "train llama.yaml job.name=branch checkpoint.resume=runs/ended/checkpoints/step-00000004 job.steps=6",
         "resuming from step 4 of runs/ended/checkpoints"},
        {0, "train llama.yaml job.name=branch checkpoint.resume=runs/ended/checkpoints/step-00000004 job.steps=6",
         "warning: command line: checkpoint.resume is runs/ended/checkpoints/step-00000004: runs/branch/checkpoints: "
         "1 checkpoint of another run moved to runs/branch/checkpoints.1, and training begins at step 4; auto would "
         "have gone on from it"},
        {0, "train llama.yaml " ENDED "job.steps=10 checkpoint.resume=overwrite",
         "checkpoint.resume is overwrite: runs/ended/checkpoints: 2 checkpoints of another run moved to "
         "runs/ended/checkpoints.1, and training begins at step 0; auto would have gone on from them"},
        {2, "sample llama.yaml job.name=ended", "add checkpoint: {} and train, or name one by --checkpoint"},
    };
    train(&some, "ended", "llama.yaml schedule.kind=cosine job.steps=8 checkpoint.every=4");
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i].words);
        expect_code(c, rows[i].code);
        ck_assert_msg(strstr(c->out, rows[i].said) || strstr(c->err, rows[i].said), "`%s` said: %s%s", rows[i].words,
                      c->out, c->err);
    }
    ck_assert_int_eq(rename("runs/ended/checkpoints/step-00000010", "runs/ended/checkpoints/step-00000100"), 0);
    run_says(2, "checkpoint step-00000100 is of step 10: give it its name back, step-00000010",
             "train llama.yaml " ENDED "job.steps=12");
    expect_says(command_run("ckpt ls llama.yaml " ENDED), "step-00000100 is of step 10");
    ck_assert_int_eq(system("cp -r runs/ended/checkpoints/step-00000100 runs/ended/checkpoints/step-00000010"), 0);
    run_says(2,
             "checkpoint step-00000100 is of step 10: remove it, or move it to another folder: that step has a "
             "checkpoint of its own, step-00000010",
             "train llama.yaml " ENDED "job.steps=12");
    struct command *c = command_run("train llama.yaml job.name=unsaved job.steps=8 metrics.trace=t.json "
                                    "metrics.blocks=t.csv");
    ck_assert_msg(strstr(c->out, "\nnothing is saved: the job has no checkpoint section\n"), "it said: %s", c->out);
    run_says(0, "metrics.trace: t.json is there and is replaced: name another file to keep it",
             "train llama.yaml job.name=unsaved job.steps=8 metrics.trace=t.json");
    run_says(0, "metrics.blocks: t.csv is there and is replaced: name another file to keep it",
             "train llama.yaml job.name=unsaved job.steps=8 metrics.blocks=t.csv");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"two jobs", two_jobs, 1},
                                        {"renamed folder", renamed_folder, 1},
                                        {"ids", ids, 1},
                                        {"runs without checkpoints", runs_without_checkpoints, 1},
                                        {"before there were ids", before_there_were_ids, 1},
                                        {"foreign metrics", foreign_metrics, 1},
                                        {"start and end", start_and_end, 1},
                                        {"another base", another_base, 1},
                                        {"another job", another_job, 1},
                                        {"another folder", another_folder, 1},
                                        {"folders near", folders_near, 1},
                                        {"another optimizer", another_optimizer, 1},
                                        {"newest of another job", newest_of_another_job, 1},
                                        {"stopped overwriting", stopped_overwriting, 1},
                                        {"after its end", after_its_end, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-runs", tests);
}
