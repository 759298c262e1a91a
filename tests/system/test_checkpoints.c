/* Checkpoints through the built command: whatever interrupts a run, the one that goes on computes the same bits;
 * another mesh reads them too; and what does not belong to the job is refused. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/system.h"

static struct curve whole, parts;

#define COSINE "schedule.kind=cosine schedule.warmup=3 schedule.min_lr=1e-4 "

/* A command that ends with this code and says this. */
static struct command *run_says(const char *line, int code, const char *says)
{
    struct command *c = command_run("%s", line);
    expect_code(c, code);
    expect_says(c, says);
    return c;
}

/* All steps once, in order: nothing is lost, nothing is there twice. */
static void expect_every_step(const struct curve *c, int n)
{
    ck_assert_int_eq(c->n, n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(c->step[i], i + 1);
}

static void expect_only_checkpoints(const char *dir, int most)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    int n = 0;
    ck_assert_msg(d != NULL, "%s", dir);
    while ((entry = readdir(d)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, ".heddle-lock")) {
            ck_assert_msg(!strncmp(entry->d_name, "step-", 5), "%s/%s was left behind", dir, entry->d_name);
            n++;
        }
    closedir(d);
    ck_assert_int_le(n, most);
    ck_assert_int_ge(n, 1);
}

static const char *const meshes[] = {
    "",
    "mesh.dp=2",
    "mesh.dp=2 strategies.zero.stage=1",
    "mesh.dp=2 strategies.zero.stage=3",
    "mesh.tp=2 strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\"}]",
    "mesh.dp=2 strategies.zero.compress.kind=int4",
    "mesh.dp=2 strategies.zero.compress.kind=powersgd strategies.zero.compress.warmup=4"};

START_TEST(resume_is_exact)
{
    char job[32];
    snprintf(job, sizeof job, "exact%d", _i);
    train(&whole, "straight", "llama.yaml %s", meshes[_i]);
    train(&parts, job, "llama.yaml %s checkpoint.dir=%s job.steps=10", meshes[_i], job);
    expect_every_step(&parts, 10);
    train(&parts, job, "llama.yaml %s checkpoint.dir=%s", meshes[_i], job);
    expect_every_step(&parts, 20);
    expect_same_bits(&parts, &whole);
}
END_TEST

/* SIGTERM saves, the same command goes on. */
START_TEST(stop_and_go_on)
{
#define STOPPED                                                                         \
    "llama.yaml job.steps=120 data.seq_len=8 mesh.dp=2 strategies.zero.stage=2 " COSINE \
    "checkpoint.dir=stop checkpoint.every=50 "
    /* Paused until it is stopped, so that it is before the end. */
    struct command *c =
        command_start(NULL, "train " STOPPED "job.name=stop "
                            "comm.hooks=[{\"use\":\"faults\",\"kind\":\"delay\",\"every\":2,\"seconds\":\"10ms\"}]");
    curve_wait("stop", 20);
    kill(c->pid, SIGTERM);
    command_wait(c, 20);
    expect_code(c, 3);
    expect_says(c, "the state is saved");
    curve_read(&parts, "stop");
    ck_assert_int_lt(parts.n, 120);
    train(&parts, "stop", STOPPED);
    expect_every_step(&parts, 120);
    train(&whole, "unstopped", STOPPED "checkpoint.dir=unstopped");
    expect_same_bits(&parts, &whole);
}
END_TEST

/* kill -9 of everything at a random step, also in the middle of saving; resumed until the job is finished. */
START_TEST(killed_anywhere)
{
#define KILLED \
    "llama.yaml job.steps=250 mesh.dp=2 strategies.zero.stage=3 " COSINE "checkpoint.dir=killed checkpoint.every=3 "
    uint64_t state = 0x9e3779b97f4a7c15u;
    train(&whole, "unkilled", KILLED "checkpoint.dir=unkilled checkpoint.every=1000");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int round = 0, at = 0; round < 4; round++) {
        struct command *c = command_start(NULL, "train " KILLED "job.name=killed");
        pid_t ranks[2];
        state = state * 6364136223846793005u + 1442695040888963407u;
        at += 10 + (int)(state >> 33) % 20;
        curve_wait("killed", at);
        command_ranks(c, 2, ranks);
        kill(c->pid, SIGKILL);
        command_wait(c, 5);
        ck_assert_int_eq(c->code, 128 + SIGKILL);
        for (int i = 0; i < 2; i++)
            waitpid(ranks[i], NULL, 0);
    }
    train(&parts, "killed", KILLED);
    expect_every_step(&parts, 250);
    expect_same_bits(&parts, &whole);
    expect_only_checkpoints("killed", 3);
}
END_TEST

/* One rank, then two with shards, then one, then two tensor parallel: the state is the same to the last bit when it is
 * loaded, so the first loss of each part differs by rounding alone. */
START_TEST(other_meshes)
{
    static const char *const parts_of[] = {"",
                                           "mesh.dp=2 strategies.zero.stage=3",
                                           "mesh.dp=2 strategies.zero.stage=1",
                                           "mesh.dp=2 mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] "
                                           "data.micro_batch=1 data.micro_batches=[5,3]",
                                           "mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]",
                                           ""};
    train(&whole, "onemesh", "llama.yaml job.steps=30");
    for (uint32_t i = 0; i < HD__COUNT(parts_of); i++) {
        train(&parts, "meshes", "llama.yaml %s checkpoint.dir=meshes job.steps=%u", parts_of[i], 5 * (i + 1));
        expect_every_step(&parts, 5 * (int)(i + 1));
    }
    expect_close(&parts, &whole, 1e-5);
    for (int i = 0; i <= 5; i++) /* the first part is the same program; the next loss comes from what was loaded */
        ck_assert_msg(fabs(parts.loss[i] - whole.loss[i]) <= 1e-6 * whole.loss[i], "step %d: %.9g against %.9g", i + 1,
                      parts.loss[i], whole.loss[i]);
}
END_TEST

/* A token outside the vocabulary is met before anything of its step is updated, so the step before is saved. */
START_TEST(bad_token_of_a_later_step)
{
    uint16_t tokens[64 * 32];
    FILE *file = fopen("later.bin", "wb");
    for (size_t i = 0; i < HD__COUNT(tokens); i++)
        tokens[i] = i == 41 * 32 ? 300 : 1 + i % 250;
    ck_assert_uint_eq(fwrite(tokens, sizeof *tokens, HD__COUNT(tokens), file), HD__COUNT(tokens));
    ck_assert_int_eq(fclose(file), 0);
    for (int masks = 0; masks < 2; masks++) {
        struct command *c = command_run("train llama.yaml mesh.dp=2 job.steps=7 job.name=later%d data.train=later.bin "
                                        "data.shuffle=false data.check_tokens=100 checkpoint={\"every\":100}%s",
                                        masks, masks ? " data.documents=mask data.eod=0" : "");
        expect_code(c, 1);
        ck_assert_msg(
            !access(masks ? "runs/later1/checkpoints/step-00000005" : "runs/later0/checkpoints/step-00000005", F_OK),
            "it said: %s", c->err);
    }
}
END_TEST

/* The same checkpoint, its first step on every mesh. */
START_TEST(one_checkpoint_every_mesh)
{
    train(&whole, "seed-of-all", "llama.yaml checkpoint.dir=all job.steps=10 checkpoint.keep=0");
    train(&whole, "first", "llama.yaml checkpoint.dir=first checkpoint.resume=all/step-00000010 job.steps=11");
    for (uint32_t i = 1; i < HD__COUNT(meshes); i++) {
        train(&parts, "next", "llama.yaml %s checkpoint.dir=next%u checkpoint.resume=all/step-00000010 job.steps=11",
              meshes[i], i);
        ck_assert_int_eq(parts.n, 1);
        ck_assert_int_eq(parts.step[0], 11);
        ck_assert_msg(fabs(parts.loss[0] - whole.loss[0]) <= 1e-6 * whole.loss[0], "%s: %.9g against %.9g", meshes[i],
                      parts.loss[0], whole.loss[0]);
    }
}
END_TEST

START_TEST(finished)
{
    char *before, *after;
    train(&whole, "done", "llama.yaml checkpoint.dir=done");
    before = read_file("runs/done/metrics.jsonl");
    for (int n = 1; n <= 2; n++) {
        struct command *c = command_run("train llama.yaml job.name=done checkpoint.dir=done mesh.dp=%d", n);
        expect_code(c, 0);
        ck_assert_msg(strstr(c->out, "the job is finished") && strstr(c->out, "step 20 of 20"), "it said: %s", c->out);
    }
    after = read_file("runs/done/metrics.jsonl");
    ck_assert_str_eq(before, after);
    train(&parts, "done", "llama.yaml checkpoint.dir=done job.steps=22"); /* and goes on if it is asked to */
    expect_every_step(&parts, 22);
    train(&parts, "done", "llama.yaml checkpoint.dir=done checkpoint.resume=overwrite");
    expect_same_bits(&parts, &whole);
}
END_TEST

static void expect_refused(const char *words, const char *message)
{
    struct command *c = command_run("train llama.yaml job.name=other checkpoint.dir=others job.steps=21 %s", words);
    expect_code(c, 2);
    expect_says(c, message);
    ck_assert_int_eq(access("runs/other/metrics.jsonl", F_OK), -1);
}

START_TEST(of_another_model)
{
    train(&whole, "others", "llama.yaml checkpoint.dir=others");
    expect_refused("model.layers=3", "step-00000020 is of another model");
    expect_refused("model.layers=3", "model.layers.2.input_layernorm.weight");
    expect_refused("model.layers=1", "model.layers.1.");
    expect_refused("model.ffn=64", "is fp32 [128, 64] there, fp32 [64, 64] here");
    expect_refused(
        "model={\"use\":\"transformer\",\"family\":\"gpt2\",\"layers\":2,\"hidden\":64,\"heads\":4,\"vocab\":256}",
        "transformer.wte.weight");
    expect_refused("mesh.dp=2 model.layers=3", "is of another model");
    struct command *c =
        command_run("train llama.yaml job.name=other checkpoint.dir=others job.steps=25 mesh.dp=2 model.layers=3");
    const char *once = strstr(c->err, "is of another model");
    ck_assert_msg(once && !strstr(once + 1, "is of another model"), "two ranks said the same:\n%s", c->err);
    expect_refused("model.layers=3", "command line: model.layers is 3 and was 2 when this was saved: checkpoint");
    expect_refused("model.layers=3", "restore what was, or take another job.name, or checkpoint.resume=overwrite");
    /* The cause alone, at its place, whatever else has changed. */
    expect_refused("optimizer.lr=0.5 model.rope_theta=9 precision.grad=bf16 model.layers=3",
                   "error: command line: model.layers is 3 and was 2 when this was saved: checkpoint");
    expect_refused("optimizer={\"use\":\"sgd\",\"lr\":0.1,\"momentum\":0.9}", "is of another optimizer");
    expect_refused("optimizer={\"use\":\"sgd\",\"lr\":0.1,\"momentum\":0.9}",
                   "command line: optimizer.use is sgd and was adamw when this was saved: checkpoint");
    expect_refused("optimizer={\"use\":\"sgd\",\"lr\":0.1,\"momentum\":0.9} model.layers=3",
                   "optimizer.use is sgd and was adamw");
    expect_refused("checkpoint.resume=step-00000007", "others has no checkpoint step-00000007");
    expect_refused("checkpoint.resume=nowhere/step-00000007", "nowhere has no checkpoint step-00000007");
}
END_TEST

/* One byte in the middle of the weights; then a file that is gone; then an index, beside which others are listed as
 * ever. */
START_TEST(damaged)
{
    const char *path = "damaged/step-00000020/model-00001-of-00001.safetensors";
    struct command *c;
    FILE *f;
    train(&whole, "damaged", "llama.yaml checkpoint.dir=damaged");
    expect_code(command_run("ckpt verify llama.yaml checkpoint.dir=damaged"), 0);
    f = fopen(path, "r+");
    ck_assert_msg(f != NULL, "%s", path);
    fseek(f, 200000, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 200000, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
    c = run_says("ckpt verify llama.yaml checkpoint.dir=damaged", 1, "model-00001-of-00001.safetensors");
    expect_says(c, "checksum");
    c = run_says("train llama.yaml job.name=damaged checkpoint.dir=damaged job.steps=25", 2, "checksum");
    expect_says(c, "damaged has no older one: checkpoint.resume=overwrite starts over, and moves it aside");
    ck_assert_int_eq(unlink(path), 0);
    run_says("train llama.yaml job.name=damaged checkpoint.dir=damaged job.steps=25", 2,
             "model-00001-of-00001.safetensors: No such file or directory; damaged has no older one");
    expect_code(command_run("train llama.yaml job.name=damaged checkpoint.dir=damaged checkpoint.resume=overwrite "
                            "job.steps=24 checkpoint.every=12"),
                0);
    write_file("damaged/step-00000012/index.json", "{\"format\": [1,");
    c = run_says("ckpt ls llama.yaml checkpoint.dir=damaged", 1, "checkpoint step-00000012: index.json:1:");
    ck_assert_msg(strstr(c->out, "step-00000024  step 24") != NULL, "it listed: %s", c->out);
}
END_TEST

/* Copied in part: hours of training are not started over without a word, and nothing of it is lost. */
START_TEST(only_torn)
{
#define PART "train llama.yaml job.name=part checkpoint.dir=part checkpoint.every=5 job.steps=10 "
    static const char *const refused[] = {"", "mesh.dp=2"};
    struct command *c;
    train(&whole, "part", "llama.yaml job.name=part checkpoint.dir=part job.steps=10");
    ck_assert_int_eq(unlink("part/step-00000010/index.json"), 0);
    for (size_t i = 0; i < HD__COUNT(refused); i++) {
        c = command_run(PART "%s", refused[i]);
        expect_code(c, 2);
        expect_says(c, "checkpoint.resume: part/step-00000010 has no index.json that can be read, so it is no "
                       "checkpoint, and there is no other: copy it whole, or checkpoint.resume=overwrite starts over "
                       "and moves it to part.1");
    }
    expect_code(command_run(PART "checkpoint.resume=never"), 2);
    c = command_run("ckpt ls llama.yaml checkpoint.dir=part");
    expect_code(c, 0);
    expect_says(c, "step-00000010 has no index.json that can be read, so it is no checkpoint");
    ck_assert_int_eq(symlink("index.json", "part/step-00000010/index.json"), 0); /* as one without permission */
#define LOOPED "step-00000010/index.json: Too many levels of symbolic links), so it is no checkpoint"
    expect_says(command_run("ckpt ls llama.yaml checkpoint.dir=part"), LOOPED);
    expect_says(command_run(PART), "part/step-00000010 has no index.json that can be read (part/" LOOPED);
    c = command_run(PART "checkpoint.resume=overwrite");
    expect_code(c, 0);
    expect_says(c, "part: 1 checkpoint without an index.json moved to part.1");
    ck_assert_int_eq(access("part.1/step-00000010/model-00001-of-00001.safetensors", F_OK), 0);
    ck_assert_int_eq(access("part/step-00000010/index.json", F_OK), 0);
}
END_TEST

/* The newest that can be read is named where a newer one cannot, and one whose index is gone is not passed over in
 * silence. What an index says is compared with the files. */
START_TEST(damaged_newest)
{
#define TORN "llama.yaml job.name=torn checkpoint.dir=torn checkpoint.every=5 checkpoint.async=false "
    struct command *c;
    json_t *index, *tensors;
    char *text, sum[17];
    train(&whole, "torn", TORN "job.steps=15");
    ck_assert_int_eq(truncate("torn/step-00000010/model-00001-of-00001.safetensors", 1000), 0);
    ck_assert_int_eq(truncate("torn/step-00000015/model-00001-of-00001.safetensors", 1000), 0);
    c = run_says("train " TORN "checkpoint.resume=step-00000015", 2,
                 "has 1000 bytes, written were 431360; the newest before it is step-00000005: `heddle ckpt verify "
                 "--checkpoint step-00000005` reads it whole, checkpoint.resume=torn/step-00000005 takes it");
    c = run_says("sample " TORN "--prompt a --tokens 1", 2, "--checkpoint torn/step-00000005 takes it");
    /* auto passes them over, on all ranks alike, and keeps them */
    c = run_says("train " TORN "job.steps=12 mesh.dp=2", 0,
                 "warning: step-00000015 is passed over, since it is damaged: checkpoint step-00000015: ");
    expect_says(c, "warning: step-00000010 is passed over, since it is damaged: checkpoint step-00000010: ");
    expect_says(c, "torn: 2 checkpoints that cannot be read moved to torn.1");
    ck_assert_ptr_nonnull(strstr(c->out, "resuming from step 5 of torn, saved on 1 rank: "));
    ck_assert_int_eq(access("torn.1/step-00000015/index.json", F_OK), 0);
    curve_read(&parts, "torn");
    expect_every_step(&parts, 12);
    ck_assert_int_eq(access("runs/torn/metrics.jsonl.1", F_OK), -1); /* the same run */
    ck_assert_int_eq(unlink("torn/step-00000012/index.json"), 0);
    c = run_says("train " TORN "job.steps=12", 0,
                 "warning: step-00000012 has no index.json that can be read, so it is no checkpoint: the newest is "
                 "step-00000010");
    ck_assert_ptr_nonnull(strstr(c->out, "resuming from step 10 of torn, saved on dp_shard 2: "));
    expect_says(c, "torn: 1 checkpoint without an index.json moved to torn.2"); /* not replaced by the new one */
    ck_assert_int_eq(access("torn.2/step-00000012/model-00001-of-00001.safetensors", F_OK), 0);
    /* two tensors with their places swapped, and a checksum that is right for it */
    index = json_loads(read_file("torn/step-00000012/index.json"), 0, NULL);
    tensors = json_object_get(index, "tensors");
    for (size_t a = 0, b; a < json_array_size(tensors); a++)
        for (b = 0; b < a; b++) {
            json_t *x = json_array_get(tensors, a), *y = json_array_get(tensors, b), *at = json_object_get(x, "offset");
            if (!json_equal(json_object_get(x, "shape"), json_object_get(y, "shape")) ||
                !json_equal(json_object_get(x, "file"), json_object_get(y, "file")))
                continue;
            json_incref(at);
            json_object_set(x, "offset", json_object_get(y, "offset"));
            json_object_set_new(y, "offset", at);
            a = b = json_array_size(tensors);
        }
    json_object_del(index, "checksum");
    text = json_dumps(index, JSON_COMPACT | JSON_SORT_KEYS);
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hd__hash(text, strlen(text), 0));
    json_object_set_new(index, "checksum", json_string(sum));
    ck_assert_int_eq(json_dump_file(index, "torn/step-00000012/index.json", 0), 0);
    run_says("ckpt verify " TORN, 1, "index.json disagrees with the header of ");
    free(text);
    json_decref(index);
}
END_TEST

/* A folder that cannot be written is found out before the first step, not after the hours until the first save. */
START_TEST(nowhere_to_save)
{
    struct command *c;
    static const char *const folders[] = {"a-file/checkpoints", "/proc/checkpoints"};
    write_file("a-file", "not a folder");
    for (int i = 0; i < 4; i++) {
        c = command_run("train llama.yaml job.name=nowhere checkpoint.dir=%s mesh.dp=%d", folders[i % 2], 1 + i / 2);
        expect_code(c, 2);
        expect_says(c, folders[i % 2]);
        ck_assert_msg(!strstr(c->err, "rank 1"), "rank 0 alone is refused, and says it:\n%s", c->err);
        ck_assert_int_eq(access("runs/nowhere/metrics.jsonl", F_OK), -1);
    }
}
END_TEST

static double number_in(const char *json, const char *key)
{
    json_t *object = json_loads(json, 0, NULL), *value = json_object_get(object, key);
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    ck_assert_msg(object != NULL, "not JSON: %s", json);
    json_decref(object);
    return number;
}

/* Evaluation alone computes what the run logged; so do the exported weights, as a model of their own. */
/* The disk is full before the steps are: what is there of `keep` makes room. */
START_TEST(little_room)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    static const struct {
        const char *bytes, *words, *says;
    } rows[] = {
        {"100000", "--dry-run", "warning: command line: checkpoint.dir: a checkpoint takes "},
        {"5000000", "--dry-run", "warning: command line: checkpoint.dir: 4 more checkpoints of "},
        {"5000000", "--dry-run job.steps=2", NULL},
        {"100000", "", "warning: command line: checkpoint.dir: a checkpoint takes "},
        {"5000000", "job.steps=40 --dry-run", NULL},
        {"100000", "job.steps=40 --dry-run", "warning: command line: checkpoint.dir: a checkpoint takes "},
        {"100000", "--dry-run", NULL}, /* nothing is left to train */
    };
    char environment[128];
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        snprintf(environment, sizeof environment, "LD_PRELOAD=" ASYNC "/small_disk.so HEDDLE_TEST_DISK=%s",
                 rows[i].bytes);
        struct command *c = command_run_env(environment,
                                            "train llama.yaml job.name=room checkpoint.dir=room "
                                            "checkpoint.every=1 %s",
                                            rows[i].words);
        expect_code(c, 0);
        ck_assert_msg(rows[i].says ? strstr(c->err, rows[i].says) != NULL : !strstr(c->err, "checkpoint.dir: "),
                      "row %zu:\n%s", i, c->err);
    }
#endif
}
END_TEST

START_TEST(evaluate_and_export)
{
#define HELD_OUT "data.val_fraction=0.1 eval.every=20 eval.batches=4 "
    struct command *c;
    double logged, loss;
    train(&whole, "held", "llama.yaml checkpoint.dir=held " HELD_OUT);
    logged = whole.val_loss[19];
    ck_assert(isfinite(logged) && isnan(whole.val_loss[18]));
    c = command_run("eval llama.yaml checkpoint.dir=held --json " HELD_OUT);
    expect_code(c, 0);
    loss = number_in(c->out, "val_loss");
    ck_assert_msg(fabs(loss - logged) <= 1e-6 * logged, "%.9g, logged was %.9g", loss, logged);
    ck_assert_int_eq((int)number_in(c->out, "step"), 20);
    for (int single = 0; single < 2; single++) {
#define SHARES "llama.yaml checkpoint.dir=held mesh.dp=2 data.micro_batch=1 data.micro_batches=[5,3] "
        const char *flag = single ? "--single-rank" : "--weights model";
        c = command_run("eval " SHARES "--json " HELD_OUT "%s", flag);
        expect_code(c, 0);
        ck_assert_msg(fabs(number_in(c->out, "val_loss") - logged) <= 1e-6 * logged, "%s, logged was %.9g", c->out,
                      logged);
        expect_code(command_run("sample " SHARES "--prompt the --max-new 2 --temperature 0 %s", flag), 0);
    }
    expect_code(command_run("ckpt export " SHARES "--to shares"), 0);
    ck_assert_int_eq(system("head -c 50000 corpus.txt > held.txt"), 0);
    ck_assert_ptr_null(strstr(c->err, "trained on"));
    run_says("eval llama.yaml checkpoint.dir=held " HELD_OUT "data.val_fraction=0.2", 0,
             "command line: data.val_fraction is 0.2 and was 0.1 when checkpoint step-00000020 was saved: what is "
             "evaluated here may have been trained on");
    run_says("eval llama.yaml checkpoint.dir=held " HELD_OUT "data.train=held.txt", 0,
             "data.train is held.txt and was corpus.txt when checkpoint step-00000020 was saved: what is evaluated");
    ck_assert_int_eq(system("cp corpus.txt cut.txt"), 0);
    train(&whole, "cut", "llama.yaml data.train=cut.txt checkpoint.dir=cut " HELD_OUT);
    c = run_says("eval llama.yaml data.train=cut.txt checkpoint.dir=cut data.batch=2 " HELD_OUT, 0, "");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    ck_assert_int_eq(system("head -c 50000 corpus.txt > cut.txt"), 0);
    c = run_says("eval llama.yaml data.train=cut.txt checkpoint.dir=cut data.batch=2 " HELD_OUT, 0,
                 "command line: data.train is not what it was when checkpoint step-00000020 was saved: it is 45000 ");
    expect_says(c, ": what is evaluated here may have been trained on");
    c = command_run("eval llama.yaml data.train=cut.txt checkpoint.dir=cut data.val=corpus.txt eval.batches=1");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "what is evaluated is no part of it: %s", c->err);
    c = command_run("ckpt export llama.yaml checkpoint.dir=held --to exported");
    expect_code(c, 0);
    ck_assert_ptr_null(strstr(c->err, "max_position_embeddings"));
    run_says("ckpt export llama.yaml checkpoint.dir=held data.seq_len=64 --to longer", 0,
             "command line: max_position_embeddings is 64 and was 32 when checkpoint step-00000020 was saved");
    /* An export that fails leaves no half of anything. */
    ck_assert_int_eq(system("mkdir -p older/config.json.part/x"), 0);
    run_says("ckpt export llama.yaml checkpoint.dir=held --to older", 1, "older/config.json.part: Is a directory");
    ck_assert_int_eq(access("older/model.safetensors", F_OK), -1);
    ck_assert_int_eq(access("older/model.safetensors.part", F_OK), -1);
    c = command_run("eval llama.yaml --json model={\"use\":\"transformer\",\"from\":\"exported\"} " HELD_OUT);
    expect_code(c, 0);
    ck_assert_msg(number_in(c->out, "val_loss") == loss, "exported: %s, of the checkpoint %.9g", c->out, loss);
}
END_TEST

/* An evaluation on other terms than the run's own: each key that makes its loss another. */
START_TEST(evaluated_otherwise)
{
    static const struct {
        const char *key, *line;
    } rows[] = {
        {"", NULL},
        {"optimizer.lr=1 data.shuffle=false", NULL},
        {"data.batch=4 eval.batches=8", NULL},
        {"data.seq_len=16", "command line: data.seq_len is 16 and was 32 when checkpoint step-00000006 was saved: this "
                            "loss and those of its run are not comparable"},
        {"data.seq_len=48", "command line: data.seq_len is 48 and was 32 when checkpoint step-00000006 was saved: its "
                            "run did not train positions from 32 on"},
        {"data.documents=mask data.eod=10", "command line: data.documents is mask and was continue when checkpoint "
                                            "step-00000006 was saved: this loss and those of its run are not"},
        {"data.batch=2", "this loss is of 8 sequences (eval.batches x data.batch), and val_loss of the run of "
                         "checkpoint step-00000006 of 32"},
        {"eval.batches=1", "this loss is of 8 sequences (eval.batches x data.batch), and val_loss of the run of "},
        {"precision.compute=bf16", "command line: precision.compute is bf16 and was fp32 when checkpoint "
                                   "step-00000006 was saved: this loss is rounded otherwise than those of its run"},
    };
    train(&whole, "terms",
          "llama.yaml checkpoint.dir=terms job.steps=6 data.val_fraction=0.1 eval.every=6 "
          "eval.batches=4");
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("eval llama.yaml checkpoint.dir=terms data.val_fraction=0.1 eval.every=6 "
                                        "eval.batches=4 %s",
                                        rows[i].key);
        expect_code(c, 0);
        if (rows[i].line)
            expect_says(c, rows[i].line);
        else
            ck_assert_msg(!strstr(c->err, "comparable") && !strstr(c->err, "this loss"), "it said: %s", c->err);
        if (!i)
            ck_assert_msg(strstr(c->out, "  (32 sequences of 32 tokens)\n"), "it said: %s", c->out);
    }
    run_says("train llama.yaml job.name=terms checkpoint.dir=terms data.val_fraction=0.1 eval.every=6 eval.batches=2",
             0,
             "command line: val_loss is of 16 sequences (eval.batches x data.batch), and until checkpoint "
             "step-00000006 of 32: a lower one is no better model, though ");
#define UNTRAINED                                                                                                 \
    "command line: data.seq_len: sequences of 40 tokens are computed, and it was 32 when the checkpoint of step " \
    "20 was saved: positions behind that may never have been trained"
#define LONGER "llama.yaml checkpoint.dir=terms data.seq_len=64 "
    run_says("sample " LONGER "--prompt a --max-new 40", 0, UNTRAINED);
    struct command *c = run_says("sample " LONGER "--prompt a --max-new 32", 0, "");
    ck_assert_msg(!strstr(c->err, "positions"), "it said: %s", c->err);
#define TEN "1 2 3 4 5 6 7 8 9 10 "
    write_file("asked.jsonl", "{\"context\": \"" TEN TEN TEN "7\", \"continuation\": \"" TEN "\"}\n");
    run_says("eval " LONGER "--tokenizer none --requests asked.jsonl --to answers.jsonl", 0, UNTRAINED);
    expect_code(command_run("train gpt2.yaml job.steps=1 checkpoint.dir=learned"), 0);
    run_says("ckpt export gpt2.yaml checkpoint.dir=learned --to learned-model", 0,
             "learned-model/config.json: n_positions is 1024, and data.seq_len was 32 when the checkpoint was saved");
}
END_TEST

/* The newest is taken, and the one that checkpoint.keep.best kept is named. */
START_TEST(better_than_the_newest)
{
#define BEST \
    "llama.yaml checkpoint={\"dir\":\"best\",\"every\":2,\"keep\":{\"last\":1,\"best\":1}} data.val_fraction=0.1 "
#define BETTER "step-00000006 is the newest checkpoint, and of those of its run step-00000002 has the best val_loss, "
    train(&whole, "best", BEST "eval.every=2 eval.batches=2 job.steps=2");
    struct command *c = run_says("eval " BEST "eval.every=2 eval.batches=2", 0, "");
    ck_assert_msg(!strstr(c->err, "the best val_loss"), "it said: %s", c->err);
    expect_code(command_run("train " BEST "job.name=best eval.every=2 eval.batches=2 job.steps=6 optimizer.lr=3"), 0);
    c = run_says("eval " BEST "eval.every=2 eval.batches=2", 0, BETTER);
    expect_says(c, ": --checkpoint step-00000002 takes it");
    run_says("ckpt export " BEST "eval.every=2 --to best-model", 0, BETTER);
    c = run_says("eval " BEST "eval.every=2 eval.batches=2 --checkpoint step-00000002", 0, "");
    ck_assert_msg(!strstr(c->err, "the best val_loss"), "it said: %s", c->err);
}
END_TEST

/* Bytes that changed under the same name: held-out data, and weights that a run began from. */
START_TEST(files_have_changed)
{
#define VAL "llama.yaml data.val=held-out.txt eval.every=2 eval.batches=2 checkpoint.dir=remade "
#define BEGUN "llama.yaml model={\"use\":\"transformer\",\"from\":\"begun\"} checkpoint.dir=begun-runs "
    ck_assert_int_eq(system("tail -c 4000 corpus.txt | tr a-m n-z > held-out.txt"), 0);
    train(&whole, "remade", VAL "job.steps=2");
    struct command *c = run_says("eval " VAL, 0, "");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    ck_assert_int_eq(system("tail -c 5000 corpus.txt | tr a-m n-z > held-out.txt"), 0);
    c = run_says("eval " VAL, 0,
                 "warning: command line: data.val is not what it was when checkpoint step-00000002 was saved: it has "
                 "5000 bytes, checksum ");
    expect_says(c, ": this loss and those of its run are not comparable");
    c = run_says("train " VAL "job.name=remade job.steps=4", 0, "data.val is not what it was when checkpoint ");
    expect_says(c, "; val_loss goes on with other data");
    c = run_says("train " VAL "job.name=remade job.steps=6", 0, "");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    for (int seed = 1; seed < 3; seed++) {
        train(&whole, seed > 1 ? "seed2" : "seed1", "llama.yaml checkpoint.dir=seed%d job.steps=1 job.seed=%d", seed,
              seed);
        expect_code(command_run("ckpt export llama.yaml checkpoint.dir=seed%d --to seeds-%d", seed, seed), 0);
    }
    ck_assert_int_eq(system("cp -r seeds-1 begun"), 0);
    train(&whole, "begun", BEGUN "job.steps=2");
    c = run_says("train " BEGUN "job.name=begun job.steps=3", 0, "");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    ck_assert_int_eq(system("cp seeds-2/model.safetensors begun"), 0);
    c = run_says(
        "train " BEGUN "job.name=begun job.steps=4", 0,
        "warning: command line: model.from is not what it was when checkpoint step-00000003 was saved: it has ");
    expect_says(c, "; these weights were not loaded: for a run from them take another job.name, or ");
}
END_TEST

/* A program that only evaluates has no gradients and no states: wherever these are, it computes what training did. */
START_TEST(evaluate_alone)
{
    static const char *const rows[] = {
        "strategies=[{\"use\":\"zero\",\"stage\":1,\"offload\":{\"optimizer\":\"file\",\"path\":\".\"}}] mesh.dp=2",
        "strategies=[{\"use\":\"zero\",\"stage\":3,\"offload\":{\"optimizer\":\"host\",\"params\":\"host\"}}] "
        "mesh.dp=2 "
        "precision.compute=bf16",
        "strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":2}] mesh.dp={\"replicate\":2,\"shard\":1}",
        "strategies=[{\"use\":\"zero\"},{\"use\":\"ema\"}] job.deterministic=exact mesh.dp=2",
        "strategies=[{\"use\":\"3d\",\"schedule\":\"zb-v\"},{\"use\":\"zero\"}] mesh.pp=2 model.layers=4 "
        "precision.compute=bf16"};
    train(&whole, "alone", "llama.yaml checkpoint.dir=alone%d job.steps=4 data.val_fraction=0.1 eval.every=4 %s", _i,
          rows[_i]);
    struct command *c = command_run(
        "eval llama.yaml checkpoint.dir=alone%d --json data.val_fraction=0.1 eval.every=4 %s", _i, rows[_i]);
    expect_code(c, 0);
    ck_assert_msg(fabs(number_in(c->out, "val_loss") - whole.val_loss[3]) <= 1e-8 * whole.val_loss[3],
                  "%s, logged was %.9g", c->out, whole.val_loss[3]);
}
END_TEST

/* tp 2 and 4 pad a vocabulary of 257: losses, initial values, checkpoints and exports are those of one rank. */
START_TEST(padded_vocabulary)
{
#define PARTS "data.format=bytes strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}] "
#define PADDED "model.vocab=257 " PARTS
    static const char *const parts_of[] = {"mesh.tp=2", "", "mesh.tp=4", "mesh.tp=2 precision.compute=bf16"};
    const char *tied = _i ? "model.tied=true" : "model.tied=false";
    char *path[2];
    train(&whole, "unpadded", "llama.yaml job.steps=15 " PADDED "%s checkpoint.dir=unpadded%d", tied, _i);
    for (uint32_t i = 0; i < 3; i++)
        train(&parts, "padded", "llama.yaml %s " PADDED "%s checkpoint.dir=padded%d job.steps=%u", parts_of[i], tied,
              _i, 5 * (i + 1));
    expect_every_step(&parts, 15);
    expect_close(&parts, &whole, 1e-5);
    expect_learns(&parts);
    expect_code(command_run("ckpt verify llama.yaml checkpoint.dir=padded%d", _i), 0);
    /* Weights that stay the initial ones: equal to the last bit, and read again on a mesh that pads. */
    for (uint32_t i = 0; i < HD__COUNT(parts_of); i++) {
        train(&parts, "still", "llama.yaml %s " PADDED "%s checkpoint.dir=still%d-%u job.steps=2 optimizer.lr=0",
              parts_of[i], tied, _i, i);
        expect_code(command_run("ckpt export llama.yaml %s " PADDED "%s checkpoint.dir=still%d-%u --to files%d-%u",
                                parts_of[i], tied, _i, i, _i, i),
                    0);
        path[0] = hd__format("cmp files%d-0/model.safetensors files%d-%u/model.safetensors", _i, _i, i);
        path[1] = hd__format("cmp files%d-0/config.json files%d-%u/config.json", _i, _i, i);
        ck_assert_int_eq(system(keep(path[0])), 0);
        ck_assert_int_eq(system(keep(path[1])), 0);
    }
    train(&whole, "still", "llama.yaml " PADDED "%s job.steps=3", tied);
    train(&parts, "read",
          "llama.yaml mesh.tp=4 " PARTS "job.steps=3 model={\"use\":\"transformer\",\"from\":\"files%d-2\"}", _i);
    expect_close(&parts, &whole, 1e-5);
}
END_TEST

START_TEST(look_at_them)
{
    struct command *c;
    json_t *rows;
    train(&whole, "list",
          "llama.yaml mesh.dp=2 strategies.zero.stage=3 checkpoint.dir=list checkpoint.every=4 checkpoint.async=false "
          "checkpoint.keep=2");
    expect_only_checkpoints("list", 2);
    c = command_run("ckpt ls llama.yaml checkpoint.dir=list --json");
    expect_code(c, 0);
    rows = json_loads(c->out, 0, NULL);
    ck_assert_int_eq(json_array_size(rows), 2);
    ck_assert_int_eq((int)json_integer_value(json_object_get(json_array_get(rows, 0), "step")), 16);
    ck_assert_int_eq((int)json_integer_value(json_object_get(json_array_get(rows, 1), "step")), 20);
    json_decref(rows);
    c = command_run("ckpt show llama.yaml checkpoint.dir=list --checkpoint step-00000016");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "step-00000016: step 16") && strstr(c->out, "[256x64] lm_head.weight"), "it said: %s",
                  c->out);
    c = command_run("ckpt show llama.yaml checkpoint.dir=list --json");
    expect_code(c, 0);
    ck_assert_int_eq((int)number_in(c->out, "step"), 20);
    run_says("ckpt verify llama.yaml checkpoint.dir=list --checkpoint step-00000099", 2,
             "list has no checkpoint step-00000099");
    run_says("ckpt ls llama.yaml", 2, "llama.yaml:1:1: the job has no checkpoint section");
    run_says("ckpt verify llama.yaml checkpoint.dir=empty", 2, "empty");
}
END_TEST

/* A job that runs removes the oldest: between being listed and being looked at, and between that and being read. */
START_TEST(look_at_a_running_job)
{
    struct command *c;
    train(&whole, "running", "llama.yaml job.steps=4 checkpoint.dir=running checkpoint.every=2 checkpoint.async=false");
    c = command_run("ckpt ls llama.yaml plugins.path=" ASYNC
                    " checkpoint={\"use\":\"hanging\",\"removed\":true,\"dir\":\"running\"}");
    expect_code(c, 0);
    ck_assert_msg(!*c->err && !strncmp(c->out, "step-00000002  step 2  ", 23) &&
                      strstr(c->out, "\nstep-00000004  step 4 ") && !strstr(c->out, "step-00000001") &&
                      !strstr(c->out, "step-00000003"),
                  "it said: %s%s", c->out, c->err);
}
END_TEST

/* A storage that does not answer when rank 0 moves what is another run's: the job ends, and says at what. */
START_TEST(move_hangs)
{
    train(&whole, "moved", "llama.yaml job.steps=4 checkpoint.dir=moved checkpoint.every=2");
    struct command *c = command_run("train llama.yaml mesh.dp=2 job.steps=4 comm.timeout=5s plugins.path=" ASYNC
                                    " checkpoint={\"use\":\"hanging\",\"dir\":\"moved\",\"slow\":true,"
                                    "\"resume\":\"overwrite\"}");
    expect_code(c, 1);
    expect_says(c, "[rank 1] warning: rank 0 still moves 2 checkpoints of moved aside");
    expect_says(c, "rank 0 moves checkpoints of moved aside, and has not moved one of the 2 that are left for ");
}
END_TEST

/* A storage with a mistake: it leaves the process otherwise, gives no transaction, or ignores where it is to store. */
START_TEST(wrong_storage)
{
#define WRONG(what) " plugins.path=" ASYNC " checkpoint={\"use\":\"hanging\",\"dir\":\"right\",\"" what "\":true}"
    struct stat st;
    struct command *c = command_run("train llama.yaml job.name=left job.steps=2" WRONG("leaves"));
    expect_code(c, 0);
    expect_says(
        c,
        "heddle-ckpt-hanging.so changed what is of the whole process: the working directory, the umask, the rounding ");
    expect_says(c, "; it is put back");
    ck_assert_int_eq(stat("right/step-00000002", &st), 0);
    ck_assert_uint_eq(st.st_mode & 0700, 0700);
    run_says("train llama.yaml job.steps=2 job.name=none" WRONG("empty"), 2,
             "checkpoint.dir: ckpt-hanging: begin returned HD_OK and gave nothing");
    expect_code(command_run("train llama.yaml job.name=one job.steps=2" WRONG("one")), 0);
    run_says("train llama.yaml job.name=two" WRONG("one") " checkpoint.resume=never", 2,
             "all have checkpoints: move them away; if they are not there, ckpt-hanging ignores the location");
}
END_TEST

/* The same version of a plug-in, and another file. */
START_TEST(rebuilt_plugin)
{
#define REBUILT "train llama.yaml job.name=rebuilt checkpoint={} strategies=[{\"use\":\"zero\"},{\"use\":\"variant\"}] "
    ck_assert_int_eq(system("mkdir -p one two && cp " ASYNC "/variant1.so one/heddle-strategy-variant.so && "
                            "cp one/*.so two && printf x >> two/heddle-strategy-variant.so"),
                     0);
    struct command *c = run_says(REBUILT "job.steps=2 plugins.path=one", 0, "");
    c = run_says(REBUILT "job.steps=3 plugins.path=one", 0, "");
    ck_assert_msg(!strstr(c->err, "strategy-variant"), "it said: %s", c->err);
    run_says(REBUILT "job.steps=4 plugins.path=two", 0, "warning: strategy-variant is 1.0, file ");
}
END_TEST

/* The scheme of checkpoint.dir names the plug-in that stores it, also one that is not heddle's. */
START_TEST(scheme_of_a_plugin)
{
#define ELSEWHERE " plugins.path=" ASYNC " checkpoint={\"dir\":\"hanging://elsewhere\",\"every\":2}"
    struct command *c;
    train(&whole, "schemed", "llama.yaml job.steps=4" ELSEWHERE);
    ck_assert_int_eq(access("elsewhere/step-00000004/index.json", F_OK), 0);
    c = command_run("ckpt ls llama.yaml" ELSEWHERE);
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "step-00000004  step 4 "));
    run_says("ckpt ls elsewhere://x", 2, "there is no plugin ckpt-elsewhere");
}
END_TEST

START_TEST(sample)
{
#define GREEDY "sample llama.yaml checkpoint.dir=talk --prompt the --tokens 40 --temperature 0"
    struct command *a, *b;
    train(&whole, "talk", "llama.yaml checkpoint.dir=talk job.steps=150 optimizer.lr=3e-3");
    a = command_run(GREEDY);
    b = command_run(GREEDY);
    expect_code(a, 0);
    ck_assert_str_eq(a->out, b->out);
    ck_assert_int_eq((int)strlen(a->out), 3 + 40 + 1);
    ck_assert_msg(!strncmp(a->out, "the", 3), "it said: %s", a->out);
    for (const char *s = a->out; *s; s++) /* what it learned from has nothing else */
        ck_assert_msg(strchr("abcdefghijklmnopqrstuvwxyz .\n", *s) != NULL, "it said: %s", a->out);
    for (int known = 0; known < 2; known++) { /* a checkpoint that is asked for is never passed over */
        a = command_run("sample llama.yaml --checkpoint step-00000009%s", known ? " checkpoint.dir=talk" : "");
        expect_code(a, 2);
        expect_says(a, "checkpoint");
        a = command_run("eval llama.yaml data.val_fraction=0.1 --checkpoint step-00000009%s",
                        known ? " checkpoint.dir=talk" : "");
        expect_code(a, 2);
        expect_says(a, "checkpoint");
    }
}
END_TEST

/* Two machines that do not share the folder: none of its checkpoints is called damaged. */
START_TEST(two_folders)
{
    struct command *c[2];
    int port = free_port();
    expect_code(command_run("train llama.yaml mesh.dp=2 job.steps=4 job.name=far checkpoint.dir=shared"), 0);
    for (int rank = 0; rank < 2; rank++)
        c[rank] = command_start_rank(rank, 2, 0, port,
                                     "train llama.yaml mesh.dp=2 job.steps=6 job.name=far "
                                     "checkpoint.dir=%s",
                                     rank ? "own" : "shared");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 2);
        expect_says(c[rank], "for rank 1, is not the folder that rank 0 has, ");
        ck_assert_msg(!strstr(c[rank]->err, "damaged"), "it said: %s", c[rank]->err);
    }
}
END_TEST

/* Without a checkpoint there is nothing to answer for, unless something else was asked for. */
START_TEST(no_checkpoint)
{
#define LOSS "eval llama.yaml data.val_fraction=0.1 "
    struct command *c;
    run_says(LOSS, 2, "llama.yaml:1:1: the job has no checkpoint section: add checkpoint: {} and train");
    run_says(LOSS "checkpoint.dir=void", 2, "command line: no checkpoint in void: train first");
    run_says("sample llama.yaml checkpoint.dir=void", 2, "--random-weights goes without");
    run_says(LOSS "checkpoint.dir=void --weights ema", 2, "no checkpoint in void");
    ck_assert_int_eq(access("void", F_OK), -1);
    c = command_run(LOSS "--random-weights");
    expect_code(c, 0);
    ck_assert_msg(!strncmp(c->err, "randomly initialised weights (job.seed 1337)\n", 45), "it said: %s", c->err);
    ck_assert_msg(fabs(number_in(command_run(LOSS "--random-weights --json")->out, "val_loss") - log(256)) < 0.1,
                  "not the loss of a guess: %s", c->out);
    c = command_run("sample llama.yaml checkpoint.dir=void --random-weights --tokens 3");
    expect_code(c, 0);
    ck_assert_msg(!strncmp(c->err, "randomly initialised weights", 28), "it said: %s", c->err);
    run_says(LOSS "--random-weights --checkpoint x", 2, "--random-weights does not go with --checkpoint");
    run_says(LOSS "--random-weights --weights ema", 2, "--random-weights does not go with --weights");
#define FROM "model={\"use\":\"transformer\",\"from\":\"" GOLDEN_DIR "/llama\"} data.seq_len=8 "
    run_says("sample llama.yaml " FROM "--random-weights", 2, "--random-weights does not go with model.from");
    run_says("sample llama.yaml " FROM "--tokens 3", 0, "the weights of model.from, " GOLDEN_DIR "/llama: the job has");
    run_says("sample llama.yaml " FROM "--tokens 3 checkpoint.dir=void", 0, "/llama: no checkpoint in void");
    run_says("sample llama.yaml " FROM "--weights ema checkpoint.dir=void", 2, "--weights needs one");
    run_says("sample llama.yaml " FROM "--prompt 1,2", 2, "token ids from 0 to 31 with blanks between them");
    ck_assert_int_eq(system("head -c 20000 corpus.txt | tr -c \"\\001\\002\" \"\\001\" > low.bin"), 0);
    train(&whole, "base", "llama.yaml data.format=bytes data.train=low.bin " FROM "checkpoint.dir=base job.steps=2");
    c = command_run("sample llama.yaml " FROM "checkpoint.dir=base --tokens 3");
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "model.from"), "it said: %s", c->err);
}
END_TEST

/* What each rank has of its own fits the job that saved it. */
START_TEST(errors_of_another_job)
{
#define PRODUCTS "llama.yaml mesh.dp=2 checkpoint.dir=own strategies.zero.compress.kind=powersgd "
    train(&whole, "own", PRODUCTS "job.steps=4");
    struct command *c = run_says("train " PRODUCTS "job.name=own job.steps=8 strategies.zero.compress.rank=2", 0,
                                 "checkpoint step-00000004 lacks the per-rank state of this job");
    c = command_run("train " PRODUCTS "job.name=own job.steps=9 strategies.zero.compress.rank=2");
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "per-rank state"), "it said: %s", c->err);
    c = command_run("eval " PRODUCTS "mesh.dp=1 data.val_fraction=0.1 eval.batches=1");
    expect_code(c, 0);
}
END_TEST

/* The line of the last step that a job has logged. */
static json_t *last_row(const char *job)
{
    char path[64], *text;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    for (char *next = text = read_file(path); (next = strstr(next, "{\"step\": ")); next++)
        text = next;
    return json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
}

static void expect_whole(json_t *object, const char *key, int64_t value)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "no %s", key);
    ck_assert_int_eq(json_integer_value(json_object_get(object, key)), value);
}

/* Every key of the table that says what decides what is trained: a line with its place, and what it was. */
START_TEST(what_is_trained_has_changed)
{
    static const struct {
        const char *key, *line; /* NULL: none */
    } rows[] = {
        {"data.seq_len=48", "command line: data.seq_len is 48 and was 32 when checkpoint step-00000006 was saved"},
        {"data.batch=16", "command line: data.batch is 16 and was 8 when"},
        {"data.shuffle=false", "command line: data.shuffle is false and was true when"},
        {"data.val_fraction=0.2", "command line: data.val_fraction is 0.2 and was 0"},
        {"job.seed=7", "command line: job.seed is 7 and was 1337"},
        {"optimizer.lr=0.5", "command line: optimizer.lr is 0.5 and was"},
        {"optimizer.betas=[0.8,0.9]", "command line: optimizer.betas is [0.8, 0.9] and was [0.9, 0.95]"},
        {"schedule.warmup=2", "command line: schedule.warmup is 2 and was 0"},
        {"precision.compute=bf16", "command line: precision.compute is bf16 and was fp32"},
        {"model.rope_theta=500000", "command line: model.rope_theta is 500000.0 and was 10000.0 when"},
        {"model.sliding_window=16 model.rope_theta=1e4", "command line: model.sliding_window is 16 and was not set"},
        {"mesh.dp=2 strategies=[{\"use\":\"zero\",\"compress\":{\"kind\":\"bf16\"}}]",
         "strategies.zero.compress.kind is bf16 and was none when checkpoint step-00000006 was saved"},
        {"data.micro_batch=1", NULL},
        {"mesh.dp=2 data.micro_batch=1 data.micro_batches=[5,3]", NULL},
        {"data.pad_batch=always", NULL},
        {"data.cache=elsewhere", NULL},
        {"data.http_retries=2", NULL},
        {"data.http_block=2MiB", NULL},
        {"data.read_ahead=4", NULL},
        {"mesh.dp=2 strategies.zero.stage=3", NULL},
        {"recompute=full", NULL},
        {"job.deterministic=exact", NULL},
        {"job.deterministic=exact data.micro_batch=4",
         "command line: data.micro_batch is 4 and was 2 when checkpoint step-00000006 was saved: job.deterministic: "
         "exact is not kept, so the bits from here on are those of neither job"},
    };
    train(&whole, "before", "llama.yaml checkpoint.dir=before job.steps=6");
    for (size_t n = 0; n < HD__COUNT(rows); n++) {
        struct command *c = command_run("train llama.yaml job.name=after checkpoint.dir=after "
                                        "checkpoint.resume=before/step-00000006 job.steps=7 %s",
                                        rows[n].key);
        const char *first = strstr(c->err, " when checkpoint ");
        expect_code(c, 0);
        ck_assert_msg(!!first == !!rows[n].line, "%s: it said: %s", rows[n].key, c->err);
        if (!strchr(rows[n].key, ' ')) /* one key, one line */
            ck_assert_msg(!first || !strstr(first + 1, " when checkpoint "), "%s: it said: %s", rows[n].key, c->err);
        if (rows[n].line)
            expect_says(c, rows[n].line);
    }
    train(&whole, "bits", "llama.yaml checkpoint.dir=bits job.steps=2 job.deterministic=exact");
    run_says("train llama.yaml job.name=bits checkpoint.dir=bits job.steps=3", 0,
             "job.deterministic is normal and was exact when checkpoint step-00000002 was saved: ");
}
END_TEST

/* The same path with other data in it, as after another tokenizer; options of the strategies that change what is
 * trained. */
START_TEST(data_or_strategies_have_changed)
{
#define LOCAL "mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":2,\"outer_lr\":%s}]"
    ck_assert_int_eq(system("cp corpus.txt moves.txt"), 0);
    train(&whole, "moves", "llama.yaml data.train=moves.txt checkpoint.dir=moves job.steps=2");
    struct command *c = command_run("train llama.yaml data.train=moves.txt job.name=moves checkpoint.dir=moves "
                                    "job.steps=3");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    ck_assert_int_eq(system("tail -c 20000 corpus.txt > moves.txt"), 0);
    run_says("train llama.yaml data.train=moves.txt job.name=moves checkpoint.dir=moves job.steps=4", 0,
             "command line: data.train is not what it was when checkpoint step-00000003 was saved: it is 20000 tokens, "
             "checksum of the first sequence ");
    ck_assert_int_eq(system("cp corpus.txt half.txt"), 0);
    train(&whole, "half", "llama.yaml data.train=half.txt data.shuffle=false checkpoint.dir=half job.steps=2");
    ck_assert_int_eq(system("{ head -c $(($(stat -c %s corpus.txt) / 2)) corpus.txt; "
                            "tail -c +$(($(stat -c %s corpus.txt) / 2 + 1)) corpus.txt | tr a-m n-z; } > half.txt"),
                     0);
    run_says("train llama.yaml data.train=[\"half.txt\"] data.val=moves.txt data.append_eod=false --dry-run "
             "data.shuffle=false job.name=half checkpoint.dir=half job.steps=3",
             0,
             "the same first sequence, and other ones between; training goes on at the same place in it: 2 of 3 steps "
             "count as done");
    run_says("train llama.yaml data.train=half.txt data.shuffle=false job.name=half checkpoint.dir=half job.steps=3", 0,
             "command line: data.train is not what it was when checkpoint step-00000002 was saved: as many tokens and "
             "the same first sequence, and other ones between");
    c = command_run("train llama.yaml data.train=half.txt data.shuffle=false job.name=half checkpoint.dir=half "
                    "job.steps=4");
    ck_assert_msg(!strstr(c->err, "is not what it was"), "it said: %s", c->err);
    c = command_run("train llama.yaml job.name=local checkpoint.dir=local job.steps=2 " LOCAL, "0.7");
    expect_code(c, 0);
    c = command_run("train llama.yaml job.name=local checkpoint.dir=local job.steps=4 " LOCAL, "0.1");
    expect_code(c, 0);
    expect_says(c, "command line: strategies.localsgd.outer_lr is 0.1 and was 0.7 when checkpoint step-00000002 was");
}
END_TEST

/* A key that is not said any more has its default again. */
START_TEST(what_was_set_is_not)
{
    train(&whole, "said", "llama.yaml checkpoint.dir=said job.steps=6 model.rope_theta=500000");
    run_says("train llama.yaml job.name=said checkpoint.dir=said job.steps=7", 0,
             "model.rope_theta is not set and was 500000.0 when checkpoint step-00000006 was saved");
}
END_TEST

/* An end that is further away makes rates of a schedule others. */
START_TEST(schedules_end_elsewhere)
{
    train(&whole, "ends", "llama.yaml checkpoint.dir=ends job.steps=6 " COSINE);
    run_says("train llama.yaml job.name=ends checkpoint.dir=ends job.steps=7 " COSINE, 0,
             "command line: job.steps is 7 and was 6 when checkpoint step-00000006 was saved");
}
END_TEST

/* 6 steps of 8 sequences of 32 tokens; then the first sequence of 48 of which nothing was read, and the tokens that
 * there were. */
START_TEST(sequences_of_another_length)
{
    json_t *row, *state;
    train(&whole, "short", "llama.yaml checkpoint.dir=short job.steps=6");
    train(&parts, "long",
          "llama.yaml checkpoint.dir=long checkpoint.resume=short/step-00000006 job.steps=8 data.seq_len=48");
    row = last_row("long");
    expect_whole(row, "step", 8);
    expect_whole(row, "tokens", 6 * 8 * 32 + 2 * 8 * 48);
    json_decref(row);
    state = json_loads(read_file("long/step-00000008/index.json"), 0, NULL);
    expect_whole(json_object_get(state, "state"), "sequence", 6 * 8 * 32 / 48 + 2 * 8);
    expect_whole(json_object_get(state, "state"), "tokens", 6 * 8 * 32 + 2 * 8 * 48);
    json_decref(state);
}
END_TEST

/* The weights compute something else: that matters to whoever uses them. The learning rate does not. */
START_TEST(weights_of_another_model)
{
    struct command *c;
    train(&whole, "weights", "llama.yaml checkpoint.dir=weights job.steps=4");
    c = run_says(
        "sample llama.yaml checkpoint.dir=weights --prompt the --tokens 2 model.rope_theta=500000 optimizer.lr=1", 0,
        "command line: model.rope_theta is 500000.0 and was 10000.0 when");
    ck_assert_msg(!strstr(c->err, "optimizer.lr"), "it said: %s", c->err);
    run_says(
        "sample llama.yaml checkpoint.dir=weights --prompt the --tokens 2 model.ffn=64", 2,
        "command line: model.ffn is 64 and was 128 when this was saved: checkpoint step-00000004 is of another model");
}
END_TEST

/* The fields of the folder behind model.from shape the model as keys of the job do. */
START_TEST(config_of_another_model)
{
#define EDITED "llama.yaml model={\"use\":\"transformer\",\"from\":\"edited\"} checkpoint.dir=config "
    static const char *const commands[] = {
        "train " EDITED "job.name=config job.steps=3",
        "eval " EDITED "data.val=corpus.txt eval.batches=1 --checkpoint step-00000002",
        "sample " EDITED "--prompt the --tokens 2 --checkpoint step-00000002",
        "ckpt export " EDITED "--to edited-model --checkpoint step-00000002",
    };
    train(&whole, "fields", "llama.yaml checkpoint.dir=fields job.steps=1");
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=fields --to edited"), 0);
    train(&whole, "config", EDITED "job.steps=2");
    /* Keys of transformers alone, and false for a missing one, are no change. */
    ck_assert_int_eq(system("sed -i '1s/{/{\"use_cache\": true, \"pretrained\": false,/' edited/config.json"), 0);
    struct command *c = command_run("sample " EDITED "--prompt the --tokens 2");
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "config.json"), "it said: %s", c->err);
    ck_assert_int_eq(system("sed -i 's/\"rms_norm_eps\": [0-9.e-]*/\"rms_norm_eps\": 0.5/' edited/config.json"), 0);
    for (size_t i = 0; i < HD__COUNT(commands); i++) {
        c = run_says(commands[i], 0, "command line: rms_norm_eps in the model's config.json is 0.5 and was ");
        expect_says(c, " when checkpoint step-00000002 was saved");
        ck_assert_msg(!strstr(c->err, "use_cache") && !strstr(c->err, "pretrained"), "it said: %s", c->err);
    }
}
END_TEST

/* A config.json that says more than its weights hold is refused before memory is filled: there may not be enough. */
START_TEST(weights_of_another_shape)
{
    struct rusage used;
    train(&whole, "shape", "llama.yaml checkpoint.dir=shape job.steps=1");
    run_says("ckpt export llama.yaml checkpoint.dir=shape --to shape-model", 0, "");
    ck_assert_int_eq(
        system("sed -i 's/\"intermediate_size\": 128/\"intermediate_size\": 400000/' shape-model/config.json"), 0);
    run_says("train llama.yaml model={\"use\":\"transformer\",\"from\":\"shape-model\"} job.name=other-shape", 2,
             "another model?");
    getrusage(RUSAGE_CHILDREN, &used);
    ck_assert_int_lt(used.ru_maxrss, 400 << 10); /* KiB; the arena is 2.4 GiB */
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"resume", resume_is_exact, HD__COUNT(meshes)},
                                        {"stop and go on", stop_and_go_on, 1},
                                        {"killed anywhere", killed_anywhere, 1},
                                        {"other meshes", other_meshes, 1},
                                        {"bad token of a later step", bad_token_of_a_later_step, 1},
                                        {"one checkpoint, every mesh", one_checkpoint_every_mesh, 1},
                                        {"finished", finished, 1},
                                        {"of another model", of_another_model, 1},
                                        {"damaged", damaged, 1},
                                        {"only torn", only_torn, 1},
                                        {"damaged newest", damaged_newest, 1},
                                        {"nowhere to save", nowhere_to_save, 1},
                                        {"little room", little_room, 1},
                                        {"evaluate and export", evaluate_and_export, 1},
                                        {"evaluated otherwise", evaluated_otherwise, 1},
                                        {"better than the newest", better_than_the_newest, 1},
                                        {"files have changed", files_have_changed, 1},
                                        {"evaluate alone", evaluate_alone, 5},
                                        {"padded vocabulary", padded_vocabulary, 2},
                                        {"look at them", look_at_them, 1},
                                        {"look at a running job", look_at_a_running_job, 1},
                                        {"move hangs", move_hangs, 1},
                                        {"wrong storage", wrong_storage, 1},
                                        {"rebuilt plugin", rebuilt_plugin, 1},
                                        {"scheme of a plugin", scheme_of_a_plugin, 1},
                                        {"sample", sample, 1},
                                        {"two folders", two_folders, 1},
                                        {"no checkpoint", no_checkpoint, 1},
                                        {"errors of another job", errors_of_another_job, 1},
                                        {"what is trained has changed", what_is_trained_has_changed, 1},
                                        {"what was set is not", what_was_set_is_not, 1},
                                        {"data or strategies have changed", data_or_strategies_have_changed, 1},
                                        {"schedules end elsewhere", schedules_end_elsewhere, 1},
                                        {"sequences of another length", sequences_of_another_length, 1},
                                        {"weights of another model", weights_of_another_model, 1},
                                        {"config of another model", config_of_another_model, 1},
                                        {"weights of another shape", weights_of_another_shape, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-checkpoints", tests);
}
