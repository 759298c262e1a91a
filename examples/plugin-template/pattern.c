/* data-pattern: tokens from a rule: token i is i * stride mod period. */
#include <stdlib.h>
#include <unistd.h>

#include "heddle/data.h"
#include "heddle/host.h"

struct settings {
    int64_t tokens, stride, period, hang;
};

struct hd_data {
    const struct settings *settings;
    _Atomic int64_t reads;
};

#define OPTION(field, text, what)                                                               \
    {                                                                                           \
        .name = #field, .value = text, .type = HD_OPT_INT, .min = 1, .max = 1e12, .help = what, \
        .flags = HD_OPTION_GLOBAL, .offset = offsetof(struct settings, field),                  \
    }

static const struct hd_option options[] = {
    OPTION(tokens, "100000", "how many there are"),
    OPTION(stride, "7", "from one token to the next"),
    OPTION(period, "251", "tokens are below it"),
    OPTION(hang, "1000000000", "it does not come back from closing after so many reads"),
};

static int32_t check(const void *settings, struct hd_error *err)
{
    const struct settings *s = settings;
    return s->stride < s->period ? HD_OK
                                 : hd_fail(err, HD_E_INVALID, "data.stride: %ld is not below data.period, %ld",
                                           (long)s->stride, (long)s->period);
}

static int32_t open_pattern(const struct hd_host *host, const void *settings, const struct hd_data_source *source,
                            struct hd_data **data, struct hd_error *err)
{
    (void)host;
    if (strcmp(source->path, "endless"))
        return hd_fail(err, HD_E_NOTFOUND, "%s: there is only the pattern 'endless'", source->path);
    struct hd_data *d = calloc(1, sizeof *d);
    if (!d)
        return hd_fail(err, HD_E_NOMEM, "data-pattern: no memory");
    d->settings = settings;
    *data = d;
    return HD_OK;
}

static void close_pattern(struct hd_data *d)
{
    while (d && d->reads >= d->settings->hang)
        pause();
    free(d);
}

static int32_t info(struct hd_data *d, struct hd_data_info *info, struct hd_error *err)
{
    (void)err;
    info->tokens = (uint64_t)d->settings->tokens;
    info->max_token = d->settings->period - 1;
    return HD_OK;
}

static int32_t read_pattern(struct hd_data *d, uint64_t first, uint64_t count, int64_t *tokens, struct hd_error *err)
{
    const struct settings *s = d->settings;
    d->reads++;
    if (first > (uint64_t)s->tokens || count > (uint64_t)s->tokens - first)
        return hd_fail(err, HD_E_INVALID, "beyond the pattern's %ld tokens", (long)s->tokens);
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = (int64_t)((first + i) * (uint64_t)s->stride % (uint64_t)s->period);
    return HD_OK;
}

static const struct hd_data_ops ops = {
    .struct_size = sizeof ops,
    .open = open_pattern,
    .close = close_pattern,
    .info = info,
    .read = read_pattern,
    .check = check,
};

HD_PLUGIN("data-pattern", "0.1.0", "Apache-2.0", .kind = HD_KIND_DATA, .name = "pattern",
          .summary = "tokens from a rule", HD_OPTIONS(options, struct settings), .ops = &ops)
