/* Promises of every strategy: jobs drawn at random train like one rank, or are refused by name; faults planted in its
 * programs are found; ops of its own compute what their tables say; a resumed job has the bits of one that never
 * stopped. */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "conformance/check.h"
#include "conformance/custom_ops.h"
#include "conformance/faults.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"

enum { CHECKS = 6, EACH = 10, FAULTS_EACH = 40, MESH_AXES = 6 };
enum { WIDENED = HD__COMPILE_WIDEN | HD__COMPILE_KEEP_REDUCER };

/* What all checks together have seen: they are processes of their own. */
static struct tally {
    uint32_t compared, apart, lossy, narrow, refused, planted, found;
    struct conf_custom_seen custom;
    char refusal[256];
} * tally;

static char beside[512]; /* the job's list of strategies, with this one */
static const char *list; /* of the word strategies=... */
static uint32_t draws = CHECKS * EACH;
static uint64_t seed = 1;
static int has_ops; /* of its own */

int conf_strategy_word(const char *word)
{
    if (!strncmp(word, "strategies=", 11))
        list = word + 11;
    else if (!strncmp(word, "draws=", 6))
        draws = (uint32_t)strtoul(word + 6, NULL, 10);
    else if (!strncmp(word, "seed=", 5))
        seed = strtoull(word + 5, NULL, 10);
    else
        return !strncmp(word, "set:", 4) && strchr(word, '=');
    return 1;
}

/* ---- jobs */

struct draw {
    int64_t axis[MESH_AXES]; /* pp, dp_replicate, dp_shard, cp, ep, tp */
    int64_t accumulation, kv_heads, layers, scale;
    const char *family, *more, *recompute, *precision, *optimizer;
};

#define ONE_OF(...) \
    ((const int64_t[]){__VA_ARGS__})[conf_faults_pick(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))]
#define TEXT_OF(...)        \
    ((const char *const[]){ \
        __VA_ARGS__})[conf_faults_pick(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))]

static int64_t ranks_of(const struct draw *d)
{
    int64_t ranks = 1;
    for (int a = 0; a < MESH_AXES; a++)
        ranks *= d->axis[a];
    return ranks;
}

/* Half of the draws have data parallelism alone, which every strategy of data parallelism takes. */
static struct draw draw_one(void)
{
    for (;;) {
        int plain = conf_faults_pick(2) == 0;
        struct draw d = {.axis = {plain ? 1 : ONE_OF(1, 1, 2), ONE_OF(1, 1, 2), ONE_OF(1, 2, 2, 4),
                                  plain ? 1 : ONE_OF(1, 1, 2), 1, plain ? 1 : ONE_OF(1, 1, 2)},
                         .accumulation = ONE_OF(1, 2, 4),
                         .kv_heads = ONE_OF(2, 4),
                         .layers = ONE_OF(2, 3),
                         .scale = ONE_OF(1, 1, 64)};
        d.family = TEXT_OF("llama", "gpt2", "qwen3", "mixtral");
        d.more = TEXT_OF("", "", ", tied: true");
        d.recompute = TEXT_OF("none", "none", "selective", "full");
        d.precision = TEXT_OF("compute: fp32", "compute: fp32", "compute: bf16", "grad: bf16, reduce: bf16");
        d.optimizer = TEXT_OF("adamw, lr: 1e-2, clip: 1.0, weight_decay: 0.1", "adamw, lr: 1e-2, clip: 0",
                              "sgd, lr: 1e-1, momentum: 0.9");
        if (!strcmp(d.family, "gpt2"))
            d.kv_heads = 4;
        if (!strcmp(d.family, "mixtral"))
            d.axis[4] = plain ? 1 : ONE_OF(1, 2);
        int64_t ranks = ranks_of(&d);
        if (ranks > 1 && ranks <= 8 && 16 % (d.axis[1] * d.axis[2] * d.axis[4] * d.accumulation) == 0)
            return d;
    }
}

static void job_text(const struct draw *d, const char *strategies, char text[2048])
{
    int mixtral = !strcmp(d->family, "mixtral");
    snprintf(text, 2048,
             "job: {name: strategy, steps: 4}\n"
             "mesh: {pp: %lld, dp: {replicate: %lld, shard: %lld}, cp: %lld, ep: %lld, tp: %lld}\n"
             "strategies: %s\n"
             "precision: {%s%s}\n"
             "recompute: %s\n"
             "optimizer: {use: %s}\n"
             "model: {use: transformer, family: %s, layers: %lld, hidden: 16, heads: 4, kv_heads: %lld, ffn: 32, "
             "vocab: 32, max_seq_len: 8%s%s}\n"
             "data: {train: text, format: bytes, seq_len: 8, batch: 16, micro_batch: %lld}\n",
             (long long)d->axis[0], (long long)d->axis[1], (long long)d->axis[2], (long long)d->axis[3],
             (long long)d->axis[4], (long long)d->axis[5], strategies, d->precision,
             d->scale > 1 ? ", loss_scale: 64" : "", d->recompute, d->optimizer, d->family, (long long)d->layers,
             (long long)d->kv_heads, d->more, mixtral ? ", experts: 4, experts_per_token: 2" : "",
             (long long)(16 / (d->axis[1] * d->axis[2] * d->axis[4] * d->accumulation)));
}

struct job {
    struct hd__job *job;
    struct hd__compiled *c;
};

static int32_t compile(struct job *j, const char *text, const char *const *overrides, size_t n, uint32_t flags,
                       struct hd_error *err)
{
    *j = (struct job){0};
    int32_t rc = hd__job_parse("job", text, strlen(text), overrides, n, &j->job, err);
    if (!rc)
        rc = hd__job_resolve(j->job, 0, err);
    return rc ? rc : hd__exec_compile_with(j->job, conf_target.plugins, flags, &j->c, err);
}

static void close_job(struct job *j)
{
    hd__exec_compiled_free(j->c);
    hd__job_free(j->job);
}

/* `flags`: WIDENED, or 0: in the job's own dtypes, which are proved but cannot be compared. */
static int32_t compile_many(struct job *j, const struct draw *d, uint32_t flags, struct hd_error *err)
{
    static const char *const overrides[] = {"device.use=cpu", "device.kernels=reference", "device.threads=1"};
    char text[2048];
    job_text(d, beside, text);
    return compile(j, text, overrides, HD__COUNT(overrides), flags, err);
}

/* With the flags that go: a strategy's ops may know none but the job's dtypes. */
static int32_t compile_widest(struct job *j, const struct draw *d, uint32_t *flags, struct hd_error *err)
{
    struct hd_error wide = HD_ERROR_INIT;
    *flags = WIDENED;
    if (compile_many(j, d, *flags, &wide) != HD_E_UNSUPPORTED) {
        *err = wide;
        return wide.code;
    }
    close_job(j);
    *flags = 0;
    return compile_many(j, d, *flags, err);
}

/* A section of a strategy's own changes the parameters, on one rank too. */
static int changes_parameters(const struct hd__compiled *c)
{
    int changes = 0;
    for (uint32_t s = 0; s < c->stage[0]->sections.count; s++)
        changes |= c->stage[0]->sections.at[s].declares;
    return changes;
}

/* The program of one rank, by heddle's own strategy, or by those of `like` where they change parameters: all of the
 * batch as one micro-batch, and the loss as a plain chain of instructions. */
static void compile_one(struct job *j, const struct draw *d, const struct hd__compiled *like)
{
    static const char *const overrides[] = {"device.use=cpu", "device.kernels=reference", "device.threads=1",
                                            "precision.compute=fp64", "precision.loss_scale=none"};
    struct hd_error err = HD_ERROR_INIT;
    struct draw alone = *d;
    char text[2048];
    for (int a = 0; a < MESH_AXES; a++)
        alone.axis[a] = 1;
    alone.accumulation = 1;
    alone.recompute = "none";
    alone.precision = "compute: fp64";
    alone.scale = 1;
    job_text(&alone, changes_parameters(like) ? beside : "[{use: zero, stage: 0}]", text);
    ck_assert_msg(!compile(j, text, overrides, HD__COUNT(overrides),
                           HD__COMPILE_WIDEN | HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD | HD__FUSE_NORM_SUMS), &err),
                  "one rank: %s\n%s", err.message, text);
}

/* Replicas that train apart, or an outer optimizer over a common copy of the parameters. */
static int trains_apart(const struct hd__compiled *c)
{
    int apart = c->stage[0]->independent_axes != 0;
    for (int32_t stage = 0; stage < c->n_stages; stage++)
        for (uint32_t f = 0; f < c->stage[stage]->flats.count; f++)
            apart |= c->stage[stage]->flats.at[f].tensor[HD__FLAT_GLOBAL_COPY] != 0;
    return apart;
}

/* Gradients travel in codes or in low rank. */
static int approximates(const struct hd__compiled *c)
{
    int found = 0;
    for (int32_t stage = 0; stage < c->n_stages; stage++)
        for (uint32_t s = 0; s < c->stage[stage]->sections.count; s++)
            for (uint32_t k = 0; k < c->stage[stage]->sections.at[s].code.count; k++)
                found |= hd__instr_sum(&c->stage[stage]->sections.at[s].code.at[k]) == HD__SUM_ENCODED ||
                         c->stage[stage]->sections.at[s].code.at[k].op == HD_OP_ORTHOGONALISE;
    return found;
}

static void prove(const struct hd__compiled *c, const char *text)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd_program **programs = hd__alloc((size_t)c->mesh.ranks * sizeof *programs);
    for (int32_t r = 0; r < c->mesh.ranks; r++)
        programs[r] = hd__compiled_program(c, r);
    struct hd__sim *machine = hd__sim_create(&c->mesh, programs, NULL);
    ck_assert_msg(!hd__sim_verify(machine, &err), "%s\n%s", err.message, text);
    hd__sim_destroy(machine);
    free(programs);
}

/* ---- the strategies of a job: this one alone, or before or behind zero */

static const struct draw plainest = {.axis = {1, 1, 2, 1, 1, 1},
                                     .accumulation = 2,
                                     .kv_heads = 4,
                                     .layers = 2,
                                     .scale = 1,
                                     .family = "llama",
                                     .more = "",
                                     .recompute = "none",
                                     .precision = "compute: fp32",
                                     .optimizer = "adamw, lr: 1e-2, clip: 1.0"};

/* Returns 0 and what each way was refused with. */
static int find_list(struct hd__text *refusals)
{
    static const char *const ways[] = {"[%s]", "[%s, {use: zero, stage: 1}]", "[{use: zero, stage: 1}, %s]",
                                       "[{use: zero, stage: 0}, %s]"};
    struct hd__text own = {0};
    uint32_t flags;
    int found = 0;
    conf_use(&own);
    for (size_t w = 0; w < (list ? 1 : HD__COUNT(ways)) && !found; w++) {
        struct hd_error err = HD_ERROR_INIT;
        struct job j;
        if (list)
            snprintf(beside, sizeof beside, "%s", list);
        else
            snprintf(beside, sizeof beside, ways[w], own.at); // NOLINT: a format of the table above
        found = !compile_widest(&j, &plainest, &flags, &err);
        has_ops |= found && j.c->stage[0]->custom_ops.count;
        if (!found)
            hd__text_add(refusals, "strategies: %s\n  %s\n", beside, err.message);
        close_job(&j);
    }
    hd__text_free(&own);
    return found;
}

START_TEST(two_ranks_of_data_parallelism_are_taken)
{
    struct hd__text refusals = {0};
    ck_assert_msg(find_list(&refusals),
                  "no job with it is compiled and proved; say strategies=[...] as a job has it\n%s", refusals.at);
}
END_TEST

/* ---- parity */

static void note_refusal(const struct hd_error *err, const char *text)
{
    ck_assert_msg(err->code != HD_E_INTERNAL,
                  "a job that it cannot do has to be refused by name; this one is made, and then not proved: %s\n%s",
                  err->message, text);
    ck_assert_msg(err->message[0], "refused without a word\n%s", text);
    if (!tally->refused++)
        snprintf(tally->refusal, sizeof tally->refusal, "%.255s", err->message);
}

/* 1 where it is a job like one rank's, to compare. */
static int open_drawn(struct job *many, const struct draw *d, const char *text)
{
    struct hd_error err = HD_ERROR_INIT;
    uint32_t flags;
    if (compile_widest(many, d, &flags, &err)) {
        note_refusal(&err, text);
        return 0;
    }
    prove(many->c, text);
    int apart = trains_apart(many->c), codes = approximates(many->c);
    tally->apart += (uint32_t)apart;
    tally->lossy += (uint32_t)(codes && !apart);
    tally->narrow += (uint32_t)(!flags && !codes && !apart);
    return flags && !apart && !codes;
}

static void compare(const struct draw *d, struct hd__compiled *many, uint32_t number, const char *text)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__numerics r;
    struct job one;
    compile_one(&one, d, many);
    ck_assert_msg(!hd__numerics(one.c, many, 3, number, &r, &err), "%s\n%s", err.message, text);
    const struct {
        const char *what;
        double is;
    } rows[] = {{"the loss", r.loss},
                {"the gradient norm", r.norm},
                {"a gradient", r.gradient},
                {"a parameter", r.parameter},
                {"the loss of an evaluation", r.evaluation}};
    for (size_t k = 0; k < HD__COUNT(rows); k++)
        ck_assert_msg(rows[k].is < HD__NUMERICS_LIMIT && !isnan(rows[k].is),
                      "%s is off by %.1e of one rank's, the worst is %s\n%s", rows[k].what, rows[k].is, r.where, text);
    close_job(&one);
    tally->compared++;
}

START_TEST(jobs_drawn_at_random_train_like_one_rank)
{
    uint32_t each = (draws + CHECKS - 1) / CHECKS;
    conf_faults_seed(seed * 1000 + (uint64_t)_i);
    for (uint32_t n = 0; n < each; n++) {
        struct draw d = draw_one();
        struct job many;
        char text[2048];
        job_text(&d, beside, text);
        if (open_drawn(&many, &d, text))
            compare(&d, many.c, n, text);
        close_job(&many);
    }
}
END_TEST

/* ---- planted faults */

/* The plainest job, or with n > 0 one at random that it takes. */
static struct draw draw_taken(int n)
{
    for (int tries = 0; n && tries < 100; tries++) {
        struct draw d = draw_one();
        struct hd_error err = HD_ERROR_INIT;
        struct job j;
        uint32_t flags;
        int taken = !compile_widest(&j, &d, &flags, &err);
        close_job(&j);
        if (taken)
            return d;
    }
    return plainest;
}

START_TEST(planted_faults_are_found)
{
    struct job fine, broken, one = {0};
    struct hd_error err = HD_ERROR_INIT;
    uint32_t flags;
    char text[2048];
    conf_faults_seed(seed * 1000 + 500 + (uint64_t)_i);
    struct draw d = draw_taken(_i);
    job_text(&d, beside, text);
    ck_assert_msg(!compile_widest(&fine, &d, &flags, &err), "%s\n%s", err.message, text);
    int alike = flags && !trains_apart(fine.c) && !approximates(fine.c);
    if (alike)
        compile_one(&one, &d, fine.c);
    else
        close_job(&fine);
    ck_assert_msg((alike || !compile_many(&fine, &d, 0, &err)) && !compile_many(&broken, &d, alike ? WIDENED : 0, &err),
                  "%s\n%s", err.message, text);
    for (int32_t stage = 0; stage < broken.c->n_stages; stage++)
        ck_assert_msg(!hd__verify(broken.c->stage[stage], &err), "%s", err.message);
    struct conf_planted to = {.fine = fine.c, .broken = broken.c, .one = one.c, .mesh = text, .averages_too = 0};
    conf_faults_plant(&to, FAULTS_EACH);
    for (uint32_t k = 0; k < CONF_FAULTS; k++)
        tally->found += to.found[k];
    tally->planted += to.planted;
    ck_assert_msg(!to.missed,
                  "%u faults change what the job trains, and neither check nor the deadlock proof finds them",
                  to.missed);
    close_job(&one);
    close_job(&broken);
    close_job(&fine);
}
END_TEST

/* ---- ops of its own */

START_TEST(custom_ops_compute_what_their_tables_say)
{
    struct hd_error err = HD_ERROR_INIT;
    struct job j;
    char text[2048];
    conf_faults_seed(seed * 1000 + 700 + (uint64_t)_i);
    struct draw d = draw_taken(_i);
    job_text(&d, beside, text);
    ck_assert_msg(!compile_many(&j, &d, 0, &err), "%s\n%s", err.message, text);
    conf_custom_ops(j.c, text, &tally->custom);
    close_job(&j);
}
END_TEST

/* ---- resumed jobs */

static void train(const char *words, int ranks)
{
    struct draw d = plainest;
    struct hd__text printed = {0};
    char text[2048];
    d.axis[2] = ranks;
    job_text(&d, beside, text);
    char *vocab = strstr(text, "vocab: 32,"); /* bytes have 256 */
    char more[2300];
    snprintf(more, sizeof more, "%.*svocab: 256,%s", (int)(vocab - text), text, vocab + 10);
    int code = conf_train(conf_folder(), more, words, &printed);
    ck_assert_msg(code == 0, "heddle train %s: exit code %d\n%s", words, code, printed.at);
    hd__text_free(&printed);
}

static char *read_whole(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL && !fseek(f, 0, SEEK_END), "%s cannot be read", path);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *data = hd__alloc(*bytes + 1);
    ck_assert(fread(data, 1, *bytes, f) == *bytes);
    fclose(f);
    return data;
}

START_TEST(a_resumed_job_has_the_same_bits)
{
    glob_t files;
    train("job.steps=7 checkpoint.dir=straight", 2);
    train("job.steps=3 checkpoint.dir=resumed", 2); /* an odd number: what runs every second step is in both halves */
    train("job.steps=7 checkpoint.dir=resumed", 2);
    ck_assert_msg(!glob("straight/step-*7/*.safetensors", 0, NULL, &files), "no checkpoint of step 7 was made");
    for (size_t n = 0; n < files.gl_pathc; n++) {
        size_t want_bytes, got_bytes;
        char other[512];
        snprintf(other, sizeof other, "resumed%s", files.gl_pathv[n] + strlen("straight"));
        char *want = read_whole(files.gl_pathv[n], &want_bytes), *got = read_whole(other, &got_bytes);
        ck_assert_msg(want_bytes == got_bytes && !memcmp(want, got, want_bytes),
                      "%s differs from %s, of the same job without a stop", other, files.gl_pathv[n]);
        free(want);
        free(got);
    }
    globfree(&files);
}
END_TEST

void conf_strategy(void)
{
    struct hd__text refusals = {0};
    struct hd_error err = HD_ERROR_INIT;
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (conf_target.folder && hd__plugins_add_default_folders(conf_target.plugins, &err))
        fprintf(stderr, "heddle test: %s\n", err.message);
    RUN_TEST(two_ranks_of_data_parallelism_are_taken);
    int found = find_list(&refusals);
    hd__text_free(&refusals);
    if (tally == MAP_FAILED || !found)
        return;
    printf("        strategies: %s\n", beside);
    RUN_LOOP(jobs_drawn_at_random_train_like_one_rank, 0, CHECKS, NULL);
    if (tally->compared + tally->refused)
        printf("        %u jobs train like one rank, %u are refused%s%.200s\n", tally->compared, tally->refused,
               tally->refused ? ", as: " : "", tally->refusal);
    if (tally->apart + tally->lossy + tally->narrow)
        printf("        %u are proved, but not compared: ranks train apart in %u, gradients are compressed in %u%s\n",
               tally->apart + tally->lossy + tally->narrow, tally->apart, tally->lossy,
               tally->narrow ? ", ops have no kernel for fp64 in the others" : "");
    RUN_LOOP(planted_faults_are_found, 0, CHECKS, NULL);
    if (tally->planted)
        printf("        %u of %u planted faults are found, the others without effect%s\n", tally->found, tally->planted,
               tally->apart + tally->lossy + tally->narrow ? " or not looked into" : "");
    if (has_ops)
        RUN_LOOP(custom_ops_compute_what_their_tables_say, 0, CHECKS, NULL);
    if (has_ops && tally->custom.called + tally->custom.left_out)
        printf("        custom ops: %u calls; what was decoded is what was encoded in %u; %u could not be called\n",
               tally->custom.called, tally->custom.compared, tally->custom.left_out);
    RUN_TEST(a_resumed_job_has_the_same_bits);
}
