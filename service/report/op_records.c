/* The operations in the parts of a report, sorted so that what belongs together stands together. */
#include <stdlib.h>

#include "service/report/diagnose.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static json_int_t number_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double time_of(const json_t *object, const char *key)
{
    const json_t *time = json_object_get(object, key);
    return json_is_number(time) ? json_number_value(time) : -1;
}

/* "dp 0,1,2", "pp 0,2 0>2 stream 1": one text a channel, the same on all members. */
static const char *key_of(const json_t *channel, struct hd__arena *arena)
{
    struct hd__text text = {0};
    const json_t *rank;
    size_t i;
    char *key;
    hd__text_add(&text, "%s ", text_of(channel, "group"));
    json_array_foreach(json_object_get(channel, "ranks"), i, rank)
        hd__text_add(&text, "%s%lld", i ? "," : "", (long long)json_integer_value(rank));
    if (json_object_get(channel, "from"))
        hd__text_add(&text, " %lld>%lld stream %lld", (long long)number_of(channel, "from"), (long long)number_of(channel, "to"),
                     (long long)number_of(channel, "stream"));
    key = hd__arena_strdup(arena, text.at);
    hd__text_free(&text);
    return key;
}

static void read_op(struct hd__seen_all *all, const json_t *part, const json_t *op, const char *const *keys, size_t n)
{
    size_t channel = (size_t)number_of(op, "channel");
    const json_t *of = json_array_get(json_object_get(part, "channels"), channel);
    if (channel >= n)
        return;
    hd__push(&all->at, ((struct hd__seen){
                           .rank = (int32_t)number_of(part, "rank"), .channel = keys[channel], .name = text_of(op, "op"),
                           .section = text_of(op, "section"), .dtype = text_of(op, "dtype"), .redop = text_of(op, "redop"),
                           .code = text_of(op, "code"), .number = number_of(op, "n"), .seq = number_of(op, "seq"),
                           .instr = number_of(op, "instruction"), .count = number_of(op, "count"), .bytes = number_of(op, "bytes"),
                           .calls = number_of(op, "calls"), .root = number_of(op, "root"), .tag = number_of(op, "tag"),
                           .message = json_object_get(of, "from") != NULL, .enqueued = time_of(op, "enqueued"),
                           .waited = time_of(op, "waited"), .completed = time_of(op, "completed")}));
}

static int by_place(const void *a, const void *b)
{
    const struct hd__seen *x = a, *y = b;
    int order = strcmp(x->channel, y->channel);
    if (!order)
        order = (x->seq > y->seq) - (x->seq < y->seq);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

void hd__seen_read(const json_t *report, struct hd__seen_all *all)
{
    const json_t *part, *item;
    size_t r, i;
    json_array_foreach(json_object_get(report, "rank"), r, part) {
        const json_t *channels = json_object_get(part, "channels");
        size_t n = json_array_size(channels);
        const char **keys = hd__alloc((n + 1) * sizeof *keys);
        json_array_foreach(channels, i, item)
            keys[i] = key_of(item, &all->arena);
        json_array_foreach(json_object_get(part, "ops"), i, item)
            read_op(all, part, item, keys, n);
        free(keys);
    }
    if (all->at.count)
        qsort(all->at.at, all->at.count, sizeof *all->at.at, by_place);
}

void hd__seen_free(struct hd__seen_all *all)
{
    hd__free_array(&all->at);
    hd__arena_free(&all->arena);
}

int hd__seen_differ(const struct hd__seen *a, const struct hd__seen *b)
{
    if (a->message || b->message)
        return a->bytes != b->bytes;
    return strcmp(a->name, b->name) || strcmp(a->dtype, b->dtype) || strcmp(a->redop, b->redop) || a->root != b->root ||
           a->count != b->count || a->calls != b->calls || a->tag != b->tag;
}

const char *hd__seen_text(const struct hd__seen *s, char out[256])
{
    int group = (int)strcspn(s->channel, " "), n;
    n = snprintf(out, 256, "#%lld %.40s(%.*s)", (long long)s->instr, s->name, HD__MIN(group, 60), s->channel);
    if (strcmp(s->name, "barrier"))
        n += snprintf(out + n, 256 - (size_t)n, " %.8s%s%.8s count %lld", s->dtype, *s->redop ? " " : "", s->redop, (long long)s->count);
    if (s->calls > 1 && n < 256)
        n += snprintf(out + n, 256 - (size_t)n, " x %lld", (long long)s->calls);
    if (s->root >= 0 && n < 256)
        snprintf(out + n, 256 - (size_t)n, " root %lld", (long long)s->root);
    return out;
}
