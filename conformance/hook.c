/* Promises of every hook that does not say otherwise: around a transport, whatever its operations are, a job trains what
 * it trains without it. */
#include "conformance/check.h"

static const char job[] =
    "job: {name: hook, steps: 5, seed: 3}\n"
    "strategies: [{use: 3d}, {use: zero, stage: 3}]\n"
    "optimizer: {use: adamw, lr: 1e-2}\n"
    "model: {use: transformer, family: llama, layers: 2, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 256}\n"
    "data: {train: text, format: bytes, seq_len: 16, batch: 8, micro_batch: 1, shuffle: false}\n";

static const char *const meshes[] = {"launch.ranks=2 mesh.dp=2", "launch.ranks=4 mesh.dp=2 mesh.tp=2",
                                     "launch.ranks=4 mesh.dp=2 mesh.pp=2", "launch.ranks=2 mesh.cp=2"};

static void train(const char *words, const char *hooks, char end[128])
{
    struct hd__text printed = {0}, all = {0};
    hd__text_add(&all, "%s 'comm.hooks=[%s]'", words, hooks);
    int code = conf_train(conf_folder(), job, all.at, &printed);
    ck_assert_msg(code == 0, "heddle train %s: exit code %d\n%s", all.at, code, printed.at);
    conf_end(&printed, end);
    hd__text_free(&printed);
    hd__text_free(&all);
}

static void compare(const char *words, const char *format)
{
    struct hd__text use = {0}, hooks = {0};
    char want[128], got[128];
    conf_use(&use);
    for (const char *at = format; *at; at++)
        *at == '#' ? hd__text_add(&hooks, "%s", use.at) : hd__text_add(&hooks, "%c", *at);
    train(words, "", want);
    train(words, hooks.at, got);
    ck_assert_msg(!strcmp(want, got), "without it the job ends with %s, and %s with it", want, got);
}

START_TEST(a_job_trains_what_it_trains_without)
{
    compare(meshes[_i], "#");
}
END_TEST

/* hook-check holds every call against those of the other ranks, before this one changed it and after. */
START_TEST(calls_match_before_and_behind_it)
{
    compare(meshes[_i], "check, #, check");
}
END_TEST

START_TEST(it_stands_in_the_stack_twice)
{
    compare(meshes[0], "#, #");
}
END_TEST

void conf_hook(void)
{
    RUN_LOOP(a_job_trains_what_it_trains_without, 0, (int)HD__COUNT(meshes), NULL);
    RUN_LOOP(calls_match_before_and_behind_it, 0, (int)HD__COUNT(meshes), NULL);
    RUN_TEST(it_stands_in_the_stack_twice);
}
