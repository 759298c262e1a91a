/* heddle eval: the loss on the held-out part. */
#include <math.h>

#include "cli/job.h"

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
    return hd_fail(err, HD_E_NOTFOUND, "--split %.60s: the job has no such set: it has val, test%s", split, names);
}

static int32_t check_part(const struct hd__compiled *c, const char *split, struct hd_error *err)
{
    int32_t part, rc = find_part(c->job, split, &part, err);
    if (rc)
        return rc;
    return strcmp(split, "val") ? hd__train_feed_check(c, part, 1, err) : hd__train_feed_check_sets(c, 1, err);
}

static void print_loss(const char *metric, const char *set, int64_t step, double loss, int json)
{
    if (json)
        printf(", \"%s%s%s\": %.9g", metric, *set ? "_" : "", set, loss);
    else
        printf("step %lld  %s%s%s %.4f  perplexity %.2f\n", (long long)step, metric, *set ? "_" : "", set, loss,
               exp(loss));
}

static int32_t evaluate(struct hd__train_session *s, const char *split, int64_t step, int json, struct hd_error *err)
{
    struct hd__job *job = s->compiled->job;
    int64_t batches = HD__MAX(1, job->eval_batches);
    double losses[HD__VAL_SETS], loss = 0, labels;
    int32_t part, all = !strcmp(split, "val"), rc = find_part(job, split, &part, err);
    if (!rc)
        rc = all ? hd__train_session_evaluate_sets(s, batches, NULL, losses, &loss, err)
                 : hd__train_session_evaluate(s, part, batches, NULL, &loss, &labels, err);
    if (rc)
        return rc;
    if (json)
        printf("{\"step\": %lld", (long long)step);
    print_loss(part == HD__FEED_TEST ? "test_loss" : "val_loss", all || part == HD__FEED_TEST ? "" : split, step, loss,
               json);
    for (uint64_t k = 0; k < job->n_val_sets && all; k++)
        print_loss("val_loss", job->val_sets[k].name, step, losses[k], json);
    printf("%s", json ? "}\n" : "");
    return HD_OK;
}

static int run(int argc, char **argv)
{
    struct hd__cli_weights weights = {.checkpoint = "auto", .name = "model"};
    const char *split = "val";
    int json = 0, code;
    const struct hd__cli_flag flags[] = {{"--checkpoint", &weights.checkpoint, NULL},
                                         {"--weights", &weights.name, NULL},
                                         {"--random-weights", NULL, &weights.random},
                                         {"--split", &split, NULL},
                                         {"--json", NULL, &json}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd__train_session session = {0};
    struct hd_error err = HD_ERROR_INIT;
    int64_t step = 0;
    code = hd__cli_job_arguments(&hd__command_eval, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = hd__cli_load_single_rank(&arguments, 0, NULL, 0, &loaded);
    if (!code)
        code = hd__cli_check_weights(&loaded, &weights);
    if (code) {
        hd__cli_unload_job(&loaded);
        return code;
    }
    int32_t rc = check_part(loaded.compiled, split, &err);
    if (!rc)
        rc = hd__cli_open_weights(&loaded, &weights, &session, &step, &err);
    if (!rc)
        rc = evaluate(&session, split, step, json, &err);
    hd__train_session_close(&session, 0);
    hd__cli_unload_job(&loaded);
    return rc ? hd__cli_print_load_error(&err) : HD__EXIT_DONE;
}

const struct hd__command hd__command_eval = {
    .name = "eval",
    .usage = "JOB [key=value ...] [--checkpoint PATH] [--weights NAME] [--random-weights] [--split val|test|NAME]\n"
             "            [--json]",
    .summary = "loss on the held-out data",
    .help = "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
            "on one rank and prints the mean loss over eval.batches batches of the held-out part (data.val or\n"
            "data.val_fraction), in natural logarithms. Where data.val has sets by name: over the labels of all of\n"
            "them, and of each.\n\n"
            "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
            "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
            "  --random-weights     initial weights, as job.seed draws them\n"
            "  --split SPLIT        val (the default); test: data.test; the name of a set of data.val\n"
            "  --json               {\"step\", \"val_loss\", \"val_loss_NAME\", ...}, or {\"step\", \"test_loss\"}\n",
    .example = "  heddle eval examples/kjv.yaml eval.batches=20\n",
    .run = run,
};
