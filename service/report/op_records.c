/* The operations in the parts of a report, sorted so that what belongs together stands together. */
#include <stdlib.h>

#include "service/report/diagnose.h"
#include "service/report/json_fields.h"

static json_int_t json_number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double json_seconds(const json_t *object, const char *key)
{
    const json_t *time = json_object_get(object, key);
    return json_is_number(time) ? json_number_value(time) : -1;
}

/* "dp 0,1,2", "world 0-8191", "pp 0,2 0>2 stream 1": one text a channel, the same on all members. */
static const char *channel_key(const json_t *channel, struct hd__arena *arena)
{
    struct hd__text text = {0};
    hd__text_add(&text, "%s %s", hd__json_word(channel, "group"), hd__json_word(channel, "ranks"));
    if (json_object_get(channel, "from"))
        hd__text_add(&text, " %lld>%lld stream %lld", (long long)json_number(channel, "from"),
                     (long long)json_number(channel, "to"), (long long)json_number(channel, "stream"));
    return hd__text_to_arena(&text, arena);
}

static void read_op(struct hd__report_op_records *all, const json_t *dump, const json_t *op, const char *const *keys,
                    size_t n)
{
    size_t channel = (size_t)json_number(op, "channel");
    const json_t *of = json_array_get(json_object_get(dump, "channels"), channel);
    if (channel >= n)
        return;
    hd__push(&all->list, ((struct hd__report_op_record){.rank = (int32_t)json_number(dump, "rank"),
                                                        .channel = keys[channel],
                                                        .name = hd__json_word(op, "op"),
                                                        .section = hd__json_word(op, "section"),
                                                        .dtype = hd__json_word(op, "dtype"),
                                                        .redop = hd__json_word(op, "redop"),
                                                        .code = hd__json_word(op, "code"),
                                                        .number = json_number(op, "n"),
                                                        .seq = json_number(op, "seq"),
                                                        .instr = json_number(op, "instruction"),
                                                        .count = json_number(op, "count"),
                                                        .bytes = json_number(op, "bytes"),
                                                        .calls = json_number(op, "calls"),
                                                        .root = json_number(op, "root"),
                                                        .tag = json_number(op, "tag"),
                                                        .p2p = json_object_get(of, "from") != NULL,
                                                        .enqueued = json_seconds(op, "enqueued"),
                                                        .waited = json_seconds(op, "waited"),
                                                        .completed = json_seconds(op, "completed")}));
}

static int by_channel_seq_rank(const void *a, const void *b)
{
    const struct hd__report_op_record *x = a, *y = b;
    int order = strcmp(x->channel, y->channel);
    if (!order)
        order = (x->seq > y->seq) - (x->seq < y->seq);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

void hd__report_op_records_read(const json_t *report, struct hd__report_op_records *all)
{
    const json_t *dump, *item;
    size_t r, i;
    json_array_foreach(json_object_get(report, "rank"), r, dump)
    {
        const json_t *channels = json_object_get(dump, "channels");
        size_t n = json_array_size(channels);
        const char **keys = hd__alloc((n + 1) * sizeof *keys);
        json_array_foreach(channels, i, item) keys[i] = channel_key(item, &all->arena);
        json_array_foreach(json_object_get(dump, "ops"), i, item) read_op(all, dump, item, keys, n);
        free(keys);
    }
    hd__sort(&all->list, by_channel_seq_rank);
}

void hd__report_op_records_free(struct hd__report_op_records *all)
{
    hd__free_array(&all->list);
    hd__arena_free(&all->arena);
}

int hd__report_op_records_differ(const struct hd__report_op_record *a, const struct hd__report_op_record *b)
{
    if (a->p2p || b->p2p)
        return a->bytes != b->bytes;
    return strcmp(a->name, b->name) || strcmp(a->dtype, b->dtype) || strcmp(a->redop, b->redop) || a->root != b->root ||
           a->count != b->count || a->calls != b->calls || a->tag != b->tag;
}

const char *hd__report_op_record_text(const struct hd__report_op_record *s, char out[256])
{
    int group = (int)strcspn(s->channel, " "), n;
    n = snprintf(out, 256, "#%lld %.40s(%.*s)", (long long)s->instr, s->name, HD__MIN(group, 60), s->channel);
    if (s->bytes)
        n += snprintf(out + n, 256 - (size_t)n, " %.8s%s%.8s count %lld", s->dtype, *s->redop ? " " : "", s->redop,
                      (long long)s->count);
    if (s->calls > 1 && n < 256)
        n += snprintf(out + n, 256 - (size_t)n, " x %lld", (long long)s->calls);
    if (s->root >= 0 && n < 256)
        snprintf(out + n, 256 - (size_t)n, " root %lld", (long long)s->root);
    return out;
}
