/* Promises of every model: its numbers are those of one rank on every mesh that it does not refuse by name, with
 * documents kept apart too where it knows them; what it says of itself is what it builds; it trains, and its checkpoint
 * goes on elsewhere. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "analysis/numerics.h"
#include "conformance/check.h"
#include "service/train/export.h"

#define DOCUMENTS ", documents: mask"

static const struct {
    const char *mesh, *strategies, *more, *data;
} meshes[] = {
    {"dp: 2", "[{use: zero, stage: 1}]", "", ""},
    {"dp: {replicate: 2, shard: 2}", "[{use: zero, stage: 3}]", "", ""},
    {"dp: 2", "[{use: zero, stage: 2}]", "recompute: full\n", ""},
    {"tp: 2", "[{use: 3d}, {use: zero, stage: 0}]", "", ""},
    {"dp: 2, tp: 2", "[{use: 3d, sequence_parallel: true}, {use: zero, stage: 3}]", "", ""},
    {"cp: 2", "[{use: 3d}, {use: zero, stage: 1}]", "", ""},
    {"cp: 2", "[{use: 3d, context: ring}, {use: zero, stage: 1}]", "", ""},
    {"pp: 2", "[{use: 3d, schedule: 1f1b}, {use: zero, stage: 0}]", "", ""},
    {"pp: 2, dp: 2", "[{use: 3d, schedule: zb-h1}, {use: zero, stage: 1}]", "recompute: selective\n", ""},
    {"ep: 2", "[{use: 3d}, {use: zero, stage: 1}]", "", ""},
    {"dp: 2", "[{use: zero, stage: 1}]", "", DOCUMENTS},
    {"dp: 2, cp: 2", "[{use: 3d}, {use: zero, stage: 3}]", "", DOCUMENTS},
};

static char (*refusals)[256]; /* by mesh; shared with the processes of checks */

static const char *job_text(int mesh, char text[2048])
{
    struct hd__text use = {0};
    conf_use(&use);
    snprintf(text, 2048,
             "job: {name: model, steps: 6, seed: 3}\nmesh: {%s}\nstrategies: %s\n%s"
             "optimizer: {use: adamw, lr: 1e-2, clip: 1.0}\nmodel: %s\n"
             "data: {train: text, format: bytes, seq_len: 8, batch: 8, micro_batch: 2, shuffle: false%s}\n",
             meshes[mesh].mesh, meshes[mesh].strategies, meshes[mesh].more, use.at, meshes[mesh].data);
    hd__text_free(&use);
    return text;
}

static int32_t compile(const char *text, const char *const *overrides, size_t n, struct hd__compiled **c,
                       struct hd_error *err)
{
    struct hd__job *job = NULL;
    int32_t rc = hd__job_parse("job", text, strlen(text), overrides, n, &job, err);
    rc = rc ? rc : hd__job_resolve(job, 0, err);
    return rc ? rc : hd__exec_compile(job, conf_target.plugins, c, err);
}

/* 1 where it compiles; a refusal has to be one. */
static int is_taken(int mesh, struct hd_error *err)
{
    struct hd__compiled *c;
    char text[2048];
    if (!compile(job_text(mesh, text), NULL, 0, &c, err))
        return 1;
    ck_assert_msg(err->code != HD_E_INTERNAL && err->message[0], "made, and then not proved: %s\n%s", err->message,
                  text);
    return 0;
}

START_TEST(numbers_are_those_of_one_rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__numerics r;
    char text[2048];
    if (!is_taken(_i, &err)) {
        snprintf(refusals[_i], sizeof refusals[_i], "%.255s", err.message);
        ck_assert_msg(_i > 0, "two ranks of data parallelism are refused: %s; say set:KEY=VALUE for a small model",
                      err.message);
        struct hd_error plain = HD_ERROR_INIT;
        int same = *meshes[_i].data && !strcmp(meshes[_i].mesh, meshes[0].mesh) && is_taken(0, &plain);
        ck_assert_msg(!same || strstr(err.message, "data.documents"),
                      "without data.documents the job is taken, and with it refused for another reason: %s",
                      err.message);
        return;
    }
    ck_assert_msg(!hd__numerics_text(job_text(_i, text), NULL, 0, conf_target.plugins, 2, 1, &r, &err), "%s\n%s",
                  err.message, text);
    ck_assert_msg(r.worst < HD__NUMERICS_LIMIT && !isnan(r.worst), "%s is off by %.1e of one rank's\n%s", r.where,
                  r.worst, text);
}
END_TEST

static struct hd__compiled *compile_first(void)
{
    struct hd__compiled *c = NULL;
    struct hd_error err = HD_ERROR_INIT;
    char text[2048];
    ck_assert_msg(!compile(job_text(0, text), NULL, 0, &c, &err), "%s", err.message);
    return c;
}

START_TEST(info_is_what_is_built)
{
    struct hd__compiled *c = compile_first();
    const struct hd_program *p = c->stage[0];
    const struct hd__tensor *logits = hd__tensor_const(p, p->logits);
    int64_t layers = 0, vocab = p->logits ? p->dims.at[logits->dim[logits->ndim - 1]].extent : 0;
    for (uint32_t b = 0; b < p->blocks.count; b++)
        layers += p->blocks.at[b][0] == 'L' && p->blocks.at[b][1] >= '0' && p->blocks.at[b][1] <= '9';
    ck_assert_msg(p->logits, "it names no logits: evaluation and sampling read them");
    ck_assert_msg(c->info.vocab == vocab, "info.vocab is %lld, the logits have %lld", (long long)c->info.vocab,
                  (long long)vocab);
    ck_assert_msg(c->info.layers == layers, "info.layers is %lld, and there are %lld blocks L0, L1, ...",
                  (long long)c->info.layers, (long long)layers);
    ck_assert_msg(p->letter['h'] == 0 || c->info.hidden == p->dims.at[p->letter['h']].extent,
                  "info.hidden is %lld, dim h %lld", (long long)c->info.hidden,
                  (long long)p->dims.at[p->letter['h']].extent);
}
END_TEST

START_TEST(it_builds_the_same_again)
{
    ck_assert_msg(hd__program_hash(compile_first()->stage[0]) == hd__program_hash(compile_first()->stage[0]),
                  "built twice, the programs differ");
}
END_TEST

START_TEST(config_json_is_that_of_info)
{
    struct hd__compiled *c = compile_first();
    struct hd_error err = HD_ERROR_INIT;
    const char *text = NULL;
    int32_t rc = conf_target.component->ops.model.config_json(c->model, &text, &err);
    ck_assert_msg(rc == HD_OK || err.message[0], "config_json is %d, without a message", rc);
    json_t *root = rc ? NULL : json_loads(text, 0, NULL);
    ck_assert_msg(rc || json_is_object(root), "config_json is no JSON object: %s", text);
    int64_t is, says;
    const char *key = hd__train_export_differs(root, &c->info, &says, &is);
    ck_assert_msg(!key,
                  "config_json says %s %lld, and info %lld: no library could load what `heddle ckpt export` writes",
                  key, (long long)says, (long long)is);
}
END_TEST

START_TEST(it_trains_and_goes_on_elsewhere)
{
    char text[2048], first[128], last[128];
    struct hd__text begun = {0}, ended = {0};
    int code = conf_train(conf_folder(), job_text(0, text), "job.steps=1 checkpoint.dir=saved", &begun);
    ck_assert_msg(code == 0, "exit code %d; bytes want a vocabulary of 256: say set:vocab=256\n%s", code, begun.at);
    code = conf_train(conf_folder(), text, "job.steps=12 checkpoint.dir=saved mesh.dp=1 launch.ranks=1", &ended);
    ck_assert_msg(code == 0, "resumed on one rank: exit code %d\n%s", code, ended.at);
    conf_end(&begun, first);
    conf_end(&ended, last);
    ck_assert_msg(atof(last + 4) < atof(first + 4), "step 1 has %s, step 12 %s: it does not learn", first, last);
}
END_TEST

void conf_model(void)
{
    struct hd_error err = HD_ERROR_INIT;
    if (conf_target.folder && hd__plugins_add_default_folders(conf_target.plugins, &err))
        fprintf(stderr, "heddle test: %s\n", err.message);
    refusals =
        mmap(NULL, HD__COUNT(meshes) * sizeof *refusals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (refusals == MAP_FAILED)
        return;
    for (int k = 0; k < (int)HD__COUNT(meshes); k++) {
        char label[160];
        snprintf(label, sizeof label, "numbers are those of one rank, %s%s%s", meshes[k].mesh,
                 *meshes[k].more ? ", recompute" : "", meshes[k].data);
        conf_run(label, numbers_are_those_of_one_rank, k, k + 1, NULL);
        if (*refusals[k] && k)
            printf("        refused: %s\n", refusals[k]);
    }
    RUN_TEST(info_is_what_is_built);
    RUN_TEST(it_builds_the_same_again);
    if (conf_target.component->ops.model.config_json)
        RUN_TEST(config_json_is_that_of_info);
    RUN_TEST(it_trains_and_goes_on_elsewhere);
}
