/* heddle eval: the loss on the held-out part. */
#include <math.h>

#include "cli/eval/eval_tokens.h"
#include "cli/ranks.h"
#include "core/program/fusion.h"
#include "service/train/data/corpus.h"
#include "service/train/data/data_files.h"
#include "service/train/data/frequencies.h"
#include "service/train/data/token_origin.h"

/* The words of --split: all sets of data.val, one of them, or data.test. */
static int32_t find_part(struct hd__job *job, const char *split, int32_t *part, struct hd_error *err)
{
    const char *names = "";
    *part = !strcmp(split, "test") ? HD__FEED_TEST : HD__FEED_VAL;
    if (!strcmp(split, "test") || !strcmp(split, "val"))
        return HD_OK;
    for (uint64_t k = 0; k < job->n_val_sets; k++, ++*part) {
        if (!strcmp(split, job->val_sets[k].name))
            return HD_OK;
        names = hd__arena_format(&job->arena, "%s, %s", names, job->val_sets[k].name);
    }
    return hd_fail(err, HD_E_NOTFOUND, "--split %.60s: the job has no such set: it has val%s%s%s", split,
                   job->test.count ? ", test" : "", names, job->test.count ? "" : ", and no data.test");
}

static int32_t check_part(const struct hd__compiled *c, const char *split, struct hd_error *err)
{
    int32_t part, rc = find_part(c->job, split, &part, err);
    if (!rc)
        rc = hd__train_token_origin(c, err);
    if (rc)
        return rc;
    hd__train_data_files_warn(c, 0);
    return strcmp(split, "val") ? hd__train_feed_check(c, part, 1, err) : hd__train_feed_check_sets(c, 1, err);
}

static void print_loss(const struct hd__job *job, const char *metric, const char *set, int64_t step, double loss,
                       int32_t sets, int json)
{
    if (json && isfinite(loss))
        printf(", \"%s%s%s\": %.9g", metric, *set ? "_" : "", set, loss);
    else if (json) /* which has no other word for it */
        printf(", \"%s%s%s\": null", metric, *set ? "_" : "", set);
    else
        printf("step %lld  %s%s%s %.4f  perplexity %.2f  (%lld sequences of %lld tokens)\n", (long long)step, metric,
               *set ? "_" : "", set, loss, exp(loss), (long long)(sets * HD__MAX(1, job->eval_batches) * job->batch),
               (long long)job->seq_len);
}

/* `of_files`: the weights are those of model.from. */
static int32_t evaluate(struct hd__train_session *s, const char *split, int64_t step, int json, int of_files,
                        struct hd_error *err)
{
    struct hd__job *job = s->compiled->job;
    int64_t batches = HD__MAX(1, job->eval_batches);
    double losses[HD__VAL_SETS], loss = 0, labels;
    int32_t part, all = !strcmp(split, "val"), rc = find_part(job, split, &part, err);
    if (!rc)
        rc = all ? hd__train_session_evaluate_sets(s, batches, NULL, losses, &loss, err)
                 : hd__train_session_evaluate(s, part, batches, NULL, &loss, &labels, err);
    if (rc || s->env->rank)
        return rc;
    if (!isfinite(loss))
        hd__log(
            HD_LOG_WARN, NULL,
            "the loss is not finite: precision.compute overflows (fp32 has more room), or these weights are broken");
    if (of_files)
        hd__train_frequencies_judge(s->compiled, s->eval_feeds[part == HD__FEED_TEST ? 0 : part],
                                    all ? losses[0] : loss, part == HD__FEED_TEST ? "test_loss" : "val_loss");
    if (json)
        printf("{\"step\": %lld", (long long)step);
    print_loss(job, part == HD__FEED_TEST ? "test_loss" : "val_loss", all || part == HD__FEED_TEST ? "" : split, step,
               loss, all ? hd__train_feed_sets(job) : 1, json);
    for (uint64_t k = 0; k < job->n_val_sets && all; k++)
        print_loss(job, "val_loss", job->val_sets[k].name, step, losses[k], 1, json);
    printf("%s", json ? "}\n" : "");
    return HD_OK;
}

/* ---- a rank */

struct eval_request {
    struct hd__cli_weights weights;
    struct hd__cli_text_flags text_flags;
    const char *split, *per_token;
    int json, single_rank;
    struct hd__cli_job loaded;
    struct hd__eval_requests requests;
};

static int32_t per_token(struct eval_request *r, struct hd__train_session *s, struct hd_error *err)
{
    const struct hd__job *job = s->compiled->job;
    int32_t part, rc = find_part(s->compiled->job, r->split, &part, err);
    return rc ? rc : hd__eval_per_token(s, part, HD__MAX(1, job->eval_batches) * job->batch, r->per_token, err);
}

static int run_rank(void *user, const struct hd__launch_env *env)
{
    struct eval_request *r = user;
    struct hd__train_session session = {0};
    struct hd_error err = HD_ERROR_INIT;
    int64_t step = 0;
    int code = HD__EXIT_DONE;
    hd__cli_begin_rank(env);
    int32_t rc = hd__cli_open_weights(&r->loaded, &r->weights, env, &session, &step, &err), opening = rc != HD_OK;
    if (!rc && r->requests.path)
        rc = hd__eval_requests_run(&session, &r->requests, &err);
    else if (!rc && r->per_token)
        rc = per_token(r, &session, &err);
    else if (!rc)
        rc = evaluate(&session, r->split, step, r->json, !step && !r->weights.random, &err);
    opening |= err.code == HD_E_INVALID; /* found late, by all ranks alike */
    if (rc)
        code = env->size > 1 ? hd__speaker_fail(&session.speaker, &err, opening)
                             : hd__cli_print_error(&err, opening ? HD__EXIT_REFUSED : HD__EXIT_FAILED);
    hd__train_session_close(&session, rc && env->size > 1);
    return code;
}

/* ---- before any rank starts */

static int load(struct eval_request *r, const struct hd__cli_job_arguments *arguments)
{
    uint32_t flags = HD__COMPILE_EVALUATION;
    if (r->per_token || r->requests.path)
        flags |= HD__COMPILE_LOSSES | HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD);
    return r->single_rank ? hd__cli_load_single_rank(arguments, flags, NULL, 0, &r->loaded)
                          : hd__cli_load_with(arguments, hd__cli_launched_ranks(), flags, NULL, 0, &r->loaded);
}

static int32_t read_requests(struct eval_request *r, struct hd_error *err)
{
    struct hd__cli_text text;
    int32_t rc = hd__cli_text_open(&r->loaded, &r->text_flags, &text, err);
    r->weights.tokens = hd__cli_text_maker(&r->loaded, &text);
    if (!rc)
        rc = hd__eval_requests_read(&r->requests, &text, r->loaded.job->seq_len, err);
    for (uint32_t i = 0; i < r->requests.rows.count; i++)
        r->weights.positions = HD__MAX(r->weights.positions, r->requests.rows.at[i].count);
    hd__cli_text_close(&text);
    return rc;
}

static int check_inputs(struct eval_request *r)
{
    r->weights.tokens = hd__train_token_maker(r->loaded.compiled);
    r->weights.used_for = r->requests.path ? 0 : HD__DIFF_EVAL;
    struct hd_error err = HD_ERROR_INIT;
    int code = hd__cli_check_weights(&r->loaded, &r->weights);
    if (code)
        return code;
    int32_t rc = r->requests.path ? read_requests(r, &err) : check_part(r->loaded.compiled, r->split, &err);
    if (!rc && r->per_token)
        rc = hd__eval_per_token_check(r->per_token, &err);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

static int check_flags(const struct eval_request *r)
{
    if (r->per_token && r->requests.path)
        return hd__cli_usage_error(&hd__command_eval, "--per-token and --requests: one at a time");
    if (r->split && r->requests.path)
        return hd__cli_usage_error(&hd__command_eval, "--split names data of the job, and --requests takes none of it");
    if (!r->requests.path != !r->requests.to)
        return hd__cli_usage_error(&hd__command_eval, "--requests FILE and --to FILE go together");
    if (r->json && (r->per_token || r->requests.path))
        return hd__cli_usage_error(&hd__command_eval, "--json is for the mean loss");
    if ((r->text_flags.tokenizer || r->text_flags.use) && !r->requests.path)
        return hd__cli_usage_error(&hd__command_eval, "--tokenizer and --use are for --requests");
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct eval_request r = {.weights = {.checkpoint = "auto", .name = "model"}};
    const struct hd__cli_flag flags[] = {{"--checkpoint", &r.weights.checkpoint, NULL},
                                         {"--weights", &r.weights.name, NULL},
                                         {"--random-weights", NULL, &r.weights.random},
                                         {"--split", &r.split, NULL},
                                         {"--per-token", &r.per_token, NULL},
                                         {"--requests", &r.requests.path, NULL},
                                         {"--to", &r.requests.to, NULL},
                                         {"--tokenizer", &r.text_flags.tokenizer, NULL},
                                         {"--use", &r.text_flags.use, NULL},
                                         {"--single-rank", NULL, &r.single_rank},
                                         {"--json", NULL, &r.json}};
    struct hd__cli_job_arguments arguments;
    int code = hd__cli_job_arguments(&hd__command_eval, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = check_flags(&r);
    r.split = r.split ? r.split : "val";
    r.weights.used_for |= r.weights.used_for && !strcmp(r.split, "test") ? HD__DIFF_TEST : 0;
    if (!code)
        code = load(&r, &arguments);
    if (!code)
        code = check_inputs(&r);
    if (!code)
        code = hd__cli_run_ranks(&r.loaded, argc, argv, &(struct hd__launch_policy){0}, run_rank, &r);
    hd__eval_requests_free(&r.requests);
    hd__cli_unload_job(&r.loaded);
    return code;
}

const struct hd__command hd__command_eval = {
    .name = "eval",
    .usage = "JOB [key=value ...] [--checkpoint PATH] [--weights NAME] [--random-weights] [--split val|test|NAME]\n"
             "            [--json] [--per-token FILE | --requests FILE --to FILE [--tokenizer FILE] [--use NAME]]\n"
             "            [--single-rank]",
    .summary = "loss on the held-out data",
    .help =
        "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
        "on the job's mesh, starts its ranks as `heddle train` does, and prints the mean loss over eval.batches\n"
        "batches of the held-out part (data.val or data.val_fraction), in natural logarithms. Where data.val has\n"
        "sets by name: over the labels of all of them, and of each.\n\n"
        "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
        "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
        "  --random-weights     initial weights, as job.seed draws them\n"
        "  --split SPLIT        val (the default); test: data.test; the name of a set of data.val\n"
        "  --json               {\"step\", \"val_loss\", \"val_loss_NAME\", ...}, or {\"step\", \"test_loss\"}\n"
        "  --per-token FILE     the log-likelihood of every label instead, [sequences, seq_len] in fp32: FILE.npy, or\n"
        "                       FILE.jsonl, a line a sequence; NaN (null) where a label does not count,\n"
        "                       -inf (null) where the model's output is not finite\n"
        "  --requests FILE      log-likelihoods of lines {\"context\", \"continuation\"} or {\"text\"} instead, as\n"
        "                       lm-evaluation-harness asks for them (examples/lm_eval)\n"
        "  --to FILE            lines {\"logprob\", \"is_greedy\", \"tokens\"} in the same order;\n"
        "                       logprob is null where it is not finite\n"
        "  --tokenizer FILE     of the requests, instead of data.tokenizer and that of model.from; --use NAME: its\n"
        "                       plug-in\n"
        "  --single-rank        on one rank, whatever the mesh\n",
    .example = "  heddle eval examples/kjv.yaml eval.batches=20\n",
    .run = run,
};
