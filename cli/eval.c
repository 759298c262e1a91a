/* heddle eval: the loss on the held-out part. */
#include <math.h>

#include "cli/job.h"

static int run(int argc, char **argv)
{
    struct hd__cli_weights weights = {.checkpoint = "auto", .name = "model"};
    int json = 0, code;
    const struct hd__cli_flag flags[] = {{"--checkpoint", &weights.checkpoint, NULL},
                                         {"--weights", &weights.name, NULL},
                                         {"--random-weights", NULL, &weights.random},
                                         {"--json", NULL, &json}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd__train_session session = {0};
    struct hd_error err = HD_ERROR_INIT;
    int64_t step = 0;
    double loss = 0;
    code = hd__cli_job_arguments(&hd__command_eval, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (!code)
        code = hd__cli_load_single_rank(&arguments, 0, NULL, 0, &loaded);
    if (!code)
        code = hd__cli_check_weights(&loaded, &weights);
    if (code) {
        hd__cli_unload_job(&loaded);
        return code;
    }
    int32_t rc = hd__train_feed_check(loaded.compiled, 1, 1, &err);
    if (!rc)
        rc = hd__cli_open_weights(&loaded, &weights, &session, &step, &err);
    if (!rc)
        rc = hd__train_session_evaluate(&session, HD__MAX(1, loaded.job->eval_batches), NULL, &loss, &err);
    if (!rc && json)
        printf("{\"step\": %lld, \"val_loss\": %.9g}\n", (long long)step, loss);
    else if (!rc)
        printf("step %lld  val_loss %.4f  perplexity %.2f\n", (long long)step, loss, exp(loss));
    hd__train_session_close(&session, 0);
    hd__cli_unload_job(&loaded);
    return rc ? hd__cli_print_load_error(&err) : HD__EXIT_DONE;
}

const struct hd__command hd__command_eval = {
    .name = "eval",
    .usage = "JOB [key=value ...] [--checkpoint PATH] [--weights NAME] [--random-weights] [--json]",
    .summary = "loss on the held-out data",
    .help = "Loads the job's newest checkpoint (or --checkpoint; where there is none yet, the weights of model.from)\n"
            "on one rank and prints the mean loss over eval.batches batches of the held-out part (data.val or\n"
            "data.val_fraction), in natural logarithms.\n\n"
            "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
            "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
            "  --random-weights     initial weights, as job.seed draws them\n"
            "  --json               {\"step\", \"val_loss\"}\n",
    .example = "  heddle eval examples/kjv.yaml eval.batches=20\n",
    .run = run,
};
