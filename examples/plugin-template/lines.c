/* metrics-lines: a line of text a step. */
#include <errno.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/metrics.h"

struct settings {
    const char *path;
};

struct hd_metrics {
    FILE *file;
    const char *path; /* of the settings */
};

static const struct hd_option options[] = {
    {.name = "path",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_REQUIRED,
     .help = "the file",
     .offset = offsetof(struct settings, path)},
};

static void close_lines(struct hd_metrics *m)
{
    if (!m)
        return;
    fprintf(m->file, "end\n");
    fclose(m->file);
    free(m);
}

static int32_t open_lines(const struct hd_host *host, const void *settings, const struct hd_metrics_start *start,
                          struct hd_metrics **metrics, struct hd_error *err)
{
    const char *path = ((const struct settings *)settings)->path;
    struct hd_metrics *m = calloc(1, sizeof *m);
    (void)host;
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "metrics-lines: no memory");
    m->path = path;
    m->file = fopen(path, start->step ? "a" : "w");
    if (!m->file) {
        free(m);
        return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    }
    fprintf(m->file, "%s from %ld to %ld %s\n", start->job, (long)start->step, (long)start->steps, start->record);
    *metrics = m;
    return HD_OK;
}

static int32_t write_lines(struct hd_metrics *m, const struct hd_metrics_record *record, struct hd_error *err)
{
    fprintf(m->file, "%ld", (long)record->step);
    for (size_t i = 0; i < record->count; i++) {
        const struct hd_metric *x = hd_metric_at(record, i);
        if (x->type == HD_METRIC_INT)
            fprintf(m->file, " %s=%ld", x->name, (long)x->integer);
        else
            fprintf(m->file, " %s=%.9g", x->name, x->number);
    }
    if (fputc('\n', m->file) < 0 || fflush(m->file))
        return hd_fail(err, HD_E_IO, "%s: %s", m->path, strerror(errno));
    return HD_OK;
}

static const struct hd_metrics_ops ops = {
    .struct_size = sizeof ops,
    .open = open_lines,
    .write = write_lines,
    .close = close_lines,
};

HD_PLUGIN("metrics-lines", "0.1.0", "Apache-2.0", .kind = HD_KIND_METRICS, .name = "lines",
          .summary = "a line of text a step", HD_OPTIONS(options, struct settings), .ops = &ops)
