/* heddle trace: sums up a measured trace. */
#include <stdlib.h>

#include "cli/job.h"
#include "cli/trace/summary.h"
#include "core/base/file.h"

static int32_t load(const char *path, json_t **trace, struct hd_error *err)
{
    json_error_t why;
    FILE *file = hd__open_regular(path, "trace", err);
    if (!file)
        return err->code;
    *trace = json_loadf(file, 0, &why);
    fclose(file);
    return *trace ? HD_OK : hd_fail(err, HD_E_INVALID, "%s:%d: not a trace: %s", path, why.line, why.text);
}

static int print_summary(const char *path, const struct hd__sim_rates *rates, int json)
{
    struct hd__trace_summary summary = {0};
    struct hd_error err = HD_ERROR_INIT, no = HD_ERROR_INIT;
    struct hd__text text = {0};
    json_t *trace = NULL;
    int32_t rc = load(path, &trace, &err);
    if (!rc && hd__trace_sum_up(trace, rates, &summary, &no))
        rc = hd_fail(&err, no.code, "%s: %s", path, no.message);
    if (!rc && json) {
        json_t *object = hd__trace_summary_json(&summary);
        json_dumpf(object, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(object);
    } else if (!rc) {
        hd__trace_summary_text(&summary, &text);
        hd__text_add(&text, "\npredicted by ");
        hd__sim_rates_text(rates, &text);
        hd__text_add(&text, " (--rates changes them)\n");
        hd__text_print(&text, stdout);
    }
    hd__trace_summary_free(&summary);
    json_decref(trace);
    return rc ? hd__cli_print_error(&err, HD__EXIT_REFUSED) : HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    const char *path = NULL, *rates_text = NULL;
    struct hd__sim_rates rates = hd__sim_rates_default();
    struct hd_error err = HD_ERROR_INIT;
    int json = 0;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (!strcmp(argv[i], "--rates") && i + 1 < argc)
            rates_text = argv[++i];
        else if (argv[i][0] == '-')
            return hd__cli_usage_error(&hd__command_trace, "%s: there is no such option, or its value is missing",
                                       argv[i]);
        else if (path)
            return hd__cli_usage_error(&hd__command_trace, "%s: one trace at a time", argv[i]);
        else
            path = argv[i];
    if (!path)
        return hd__cli_usage_error(&hd__command_trace, "no trace given: metrics.trace=FILE.json of a job writes one");
    if (rates_text && hd__sim_rates_parse(&rates, rates_text, &err))
        return hd__cli_usage_error(&hd__command_trace, "--rates: %s", err.message);
    return print_summary(path, &rates, json);
}

const struct hd__command hd__command_trace = {
    .name = "trace",
    .usage = "FILE.json [--rates LIST] [--json]",
    .summary = "sum up a measured trace",
    .help =
        "A job with metrics.trace writes when every instruction of some steps ran, on all ranks; Perfetto shows that\n"
        "file as it is. This command sums it up: of each rank the time that it computed, waited for communication\n"
        "(exposed) and for data, the bubble (the part between the model's first instruction of a step and the last in\n"
        "which it computed nothing of the model), and how often all others had come to a collective before it; then\n"
        "time by axis, block and kind of instruction. Beside each kind stands what the estimated timeline of\n"
        "`heddle explain` takes for it.\n\n"
        "  --rates LIST      of the estimate: flops=, memory=, link= (a second), kernel=, latency= (seconds), and by\n"
        "                    axis tp.link=, dp.latency=, ...\n"
        "  --json            for machines\n",
    .example = "  heddle train examples/kjv.yaml metrics.trace=step.json\n"
               "  heddle trace step.json --rates flops=2e10,memory=1e10\n",
    .run = run};
