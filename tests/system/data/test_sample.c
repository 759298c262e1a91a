/* heddle sample: the same text on every mesh, with keys and values that are kept and without. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"

static struct curve curve;

/* Draws of a trained model: another number in the logits is soon another text. Longer than the sequence of 32. */
#define SAMPLE "sample %s.yaml checkpoint.dir=%s --prompt the --max-new 60 --temperature 0.9 --seed 3 --json "

static const char *sampled(const char *model, const char *words)
{
    struct command *c = command_run(SAMPLE "%s", model, model, words);
    expect_code(c, 0);
    ck_assert_msg(strchr(c->out, '\n') == c->out + strlen(c->out) - 1, "one rank prints: %s", c->out);
    return c->out;
}

static const char *const models[] = {"llama", "gpt2", "mixtral"};

static void train_all(void)
{
    for (size_t m = 0; m < HD__COUNT(models); m++)
        train(&curve, models[m], "%s.yaml job.steps=40 optimizer.lr=3e-3 checkpoint.dir=%s", models[m], models[m]);
}

START_TEST(meshes)
{
    static const char *const meshes[] = {"mesh.tp=2 mesh.dp=2", "mesh.pp=2", "mesh.dp=4 strategies.zero.stage=3",
                                         "mesh.cp=2", "mesh.tp=2 strategies.3d.sequence_parallel=true"};
    train_all();
    for (size_t m = 0; m < HD__COUNT(models); m++) {
        const char *alone = sampled(models[m], "--single-rank mesh.dp=4"), *many;
        json_t *o = json_loads(alone, 0, NULL);
        ck_assert_uint_eq(json_array_size(json_object_get(o, "ids")), 60);
        json_decref(o);
        for (size_t i = 0; i < HD__COUNT(meshes); i++) {
            many = sampled(models[m], meshes[i]);
            ck_assert_msg(!strcmp(many, alone), "%s %s: %s, and on one rank %s", models[m], meshes[i], many, alone);
        }
    }
    ck_assert_str_eq(sampled("mixtral", "mesh.ep=2"), sampled("mixtral", ""));
    /* A generated text is one document. */
    for (size_t m = 0; m < 2; m++)
        ck_assert_str_eq(sampled(models[m], "data.documents=mask data.eod=10"), sampled(models[m], ""));
}
END_TEST

START_TEST(caches)
{
    train_all();
    for (size_t m = 0; m < HD__COUNT(models); m++) {
        const char *kept = sampled(models[m], ""), *not_kept = sampled(models[m], "--no-cache");
        ck_assert_msg(!strcmp(kept, not_kept), "%s: %s, and without a cache %s", models[m], kept, not_kept);
    }
    /* Ring attention keeps no keys: the reason is printed, and every token is a full pass. */
    struct command *c = command_run(SAMPLE "mesh.cp=2 strategies.3d.context=ring", "llama", "llama");
    expect_code(c, 0);
    expect_says(c, "keys and values are not kept: ring attention has a sequence's keys on several ranks");
    ck_assert_str_eq(c->out, sampled("llama", ""));
    c = command_run(SAMPLE "model.capacity=2", "mixtral", "mixtral");
    expect_code(c, 0);
    expect_says(c, "keys and values are not kept: its route computes a position from others (experts with a cap");
    c = command_run("explain gpt2.yaml --section decode");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "attention_cached"), "it said: %s", c->out);
    c = command_run("explain mixtral.yaml --section decode model.capacity=2");
    expect_code(c, 2);
    expect_says(c, "--section decode: keys and values are not kept: its route");
}
END_TEST

/* A rank that fails ends the command as it ends an evaluation. */
START_TEST(failures)
{
    struct command *c = command_run("sample llama.yaml mesh.dp=2 checkpoint.dir=void --max-new 3");
    expect_code(c, 2);
    expect_says(c, "no checkpoint in void: train first");
    c = command_run("sample llama.yaml mesh.dp=3 --random-weights --max-new 3");
    expect_code(c, 2);
    expect_says(c, "no multiple of micro_batch");
    c = command_run("sample llama.yaml mesh.dp=2 --random-weights --max-new 3 --stop 256");
    expect_code(c, 0); /* bytes: a text */
    c = command_run("sample llama.yaml mesh.dp=2 model.vocab=300 data.format=bytes --random-weights --max-new 3 "
                    "--prompt 1 --stop 300");
    expect_code(c, 2);
    expect_says(c, "the model's vocabulary is 300");
}
END_TEST

/* Weights that fp16 has no room for: an evaluation says so and is JSON, no token is drawn, training logs null. */
START_TEST(not_finite)
{
    static const char *const ways[] = {"", "mesh.dp=2", "--temperature 0 --no-cache"};
    static const struct {
        const char *flags, *key, *says;
    } files[] = {
        {"--requests asked.jsonl --tokenizer none --to", "logprob", "not-finite.jsonl: 1 log-likelihood is not finite"},
        {"--per-token", NULL, "log-likelihoods are not finite (null): precision.compute overflows"}};
    struct command *c = command_run("train llama.yaml precision.compute=fp16 optimizer.lr=1e6 job.steps=1 eval.every=1 "
                                    "eval.batches=1 data.val_fraction=0.1 checkpoint.dir=broken metrics.jsonl=rows");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "val_loss inf"));
    ck_assert_ptr_nonnull(strstr(read_file("rows"), "\"val_loss\": null"));
    c = command_run("eval llama.yaml precision.compute=fp16 data.val_fraction=0.1 eval.batches=1 checkpoint.dir=broken "
                    "--json");
    expect_code(c, 0);
    ck_assert_str_eq(c->out, "{\"step\": 1, \"val_loss\": null}\n");
    expect_says(c, "the loss is not finite: precision.compute overflows");
    write_file("asked.jsonl", "{\"context\": \"5\", \"continuation\": \"6 7\"}\n");
    for (size_t i = 0; i < HD__COUNT(files); i++) {
        json_error_t why;
        c = command_run("eval llama.yaml precision.compute=fp16 data.val_fraction=0.1 eval.batches=1 "
                        "checkpoint.dir=broken %s not-finite.jsonl",
                        files[i].flags);
        expect_code(c, 0);
        expect_says(c, files[i].says);
        json_t *o = json_loads(read_file("not-finite.jsonl"), JSON_DISABLE_EOF_CHECK, &why);
        ck_assert_msg(o && json_is_null(files[i].key ? json_object_get(o, files[i].key)
                                                     : json_array_get(json_object_get(o, "loglikelihoods"), 1)),
                      "%s: %s", why.text, read_file("not-finite.jsonl"));
        json_decref(o);
        unlink("not-finite.jsonl");
    }
    for (size_t i = 0; i < HD__COUNT(ways); i++) {
        c = command_run("sample llama.yaml precision.compute=fp16 checkpoint.dir=broken --prompt a --max-new 3 %s",
                        ways[i]);
        expect_code(c, 1);
        expect_says(c, "the logits of token 2 are not finite, so none can be drawn");
    }
}
END_TEST

/* A signal to the command ends its ranks, also while they start: there is nothing to save. */
START_TEST(interrupted)
{
    static const char *const commands[] = {"sample llama.yaml mesh.dp=2 --random-weights --max-new 100000000 --json",
                                           "eval llama.yaml mesh.dp=2 --random-weights data.val_fraction=0.1 "
                                           "eval.batches=100000000"};
    for (size_t i = 0; i < HD__COUNT(commands); i++) {
        struct command *c = command_start(NULL, "%s", commands[i]);
        pid_t ranks[2];
        command_ranks(c, 2, ranks);
        ck_assert_int_eq(kill(c->pid, SIGINT), 0);
        command_wait(c, promptly(20));
        expect_code(c, 1);
        expect_gone(ranks, 2, 5);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"meshes", meshes, 1},           {"caches", caches, 1},
                                        {"failures", failures, 1},       {"not-finite", not_finite, 1},
                                        {"interrupted", interrupted, 1}, {NULL, NULL, 0}};
    return system_run("system-sample", tests);
}
