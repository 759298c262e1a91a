/* heddle eval: the loss on the held-out part. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "cli/job.h"
#include "service/train/checkpointer.h"

static int32_t evaluate(struct hd__train_session *session, const char *checkpoint, const char *weights, int64_t *step,
                        double *loss, struct hd_error *err)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    struct hd__compiled *compiled = session->compiled;
    struct hd__train_checkpointer *checkpointer = NULL;
    struct hd__train_progress at = {0};
    int64_t batches = HD__MAX(1, compiled->job->eval_batches);
    int32_t rc = hd__train_session_open(session, compiled, &alone, err);
    if (!rc)
        rc = hd__train_session_init_params(session, err);
    if (!rc)
        rc = hd__train_checkpointer_open(session, NULL, &checkpointer, err);
    if (!rc && checkpointer)
        rc = hd__train_checkpointer_load(checkpointer, checkpoint, weights, &at, err);
    if (!rc)
        rc = hd__train_session_evaluate(session, batches, loss, err);
    hd__train_checkpointer_close(checkpointer);
    *step = at.step;
    return rc;
}

static int run(int argc, char **argv)
{
    const char *checkpoint = "auto", *weights = "model";
    int json = 0, code;
    const struct hd__cli_flag flags[] = {
        {"--checkpoint", &checkpoint, NULL}, {"--weights", &weights, NULL}, {"--json", NULL, &json}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0};
    struct hd__train_session session = {0};
    struct hd_error err = HD_ERROR_INIT;
    int64_t step = 0;
    double loss = 0;
    int32_t rc;
    code = hd__cli_job_arguments(&hd__command_eval, argc, argv, flags, HD__COUNT(flags), &arguments);
    if (code)
        return code;
    code = hd__cli_load_single_rank(&arguments, 0, &loaded);
    if (!code)
        code = hd__cli_check_checkpoint(&loaded, checkpoint);
    if (code) {
        hd__cli_unload_job(&loaded);
        return code;
    }
    session.compiled = loaded.compiled;
    rc = evaluate(&session, checkpoint, weights, &step, &loss, &err);
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
    .usage = "JOB [key=value ...] [--checkpoint PATH] [--weights NAME] [--json]",
    .summary = "loss on the held-out data",
    .help =
        "Loads the job's newest checkpoint (or --checkpoint) on one rank and prints the mean loss over eval.batches\n"
        "batches of the held-out part (data.val or data.val_fraction), in natural logarithms.\n\n"
        "  --checkpoint PATH    a checkpoint's folder or name, instead of the newest\n"
        "  --weights NAME       an average that a strategy keeps instead of the weights: ema\n"
        "  --json               {\"step\", \"val_loss\"}\n",
    .example = "  heddle eval examples/kjv.yaml eval.batches=20\n",
    .run = run,
};
