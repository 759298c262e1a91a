/* Lines for people about a job that is right: strategies that its mesh brought, and values without effect. */
#include "core/job/internal.h"

/* One condition, "KEY=A|B" or "KEY!=A|B". */
struct need {
    const char *key, *now; /* whole name; its value, NULL: none */
    const char *first;     /* the first word of those that are asked for; NULL: words are excluded */
    int holds;
};

static struct need read_need(struct hd__job *job, const struct hd__job_value *of, const char *text)
{
    size_t n = strcspn(text, "!="), end = strcspn(text, "&");
    int unless = text[n] == '!';
    char *name = hd__arena_format(&job->arena, "%.*s", (int)n, text);
    char *words = hd__arena_format(&job->arena, "%.*s", (int)(end - n - 1 - (size_t)unless), text + n + 1 + unless);
    struct need need = {.key = hd__job_key_of(job, name)};
    if (!need.key) /* of the same table */
        need.key =
            hd__arena_format(&job->arena, "%.*s.%s",
                             (int)(of->owner ? strlen(of->owner->path) : strcspn(of->path, ".")), of->path, name);
    const struct hd__job_value *value = hd__job_value_get(job, need.key);
    need.now = value ? value->text : NULL;
    int data = !strcmp(name, "data_ranks");
    if (data || !strcmp(name, "ranks")) {
        int64_t many = data ? job->ranks / (job->mesh[HD_AXIS_PP] * job->mesh[HD_AXIS_TP]) : job->ranks;
        need.key = data ? "dp x cp x ep" : "the number of ranks";
        need.now = hd__arena_format(&job->arena, "%lld", (long long)many);
    }
    for (char *word = words, *rest; word; word = rest) {
        rest = strchr(word, '|');
        if (rest)
            *rest++ = 0;
        need.holds |= need.now && !strcmp(need.now, word);
    }
    need.holds ^= unless;
    need.first = unless ? NULL : words;
    return need;
}

static void note_idle(struct hd__job *job, const struct hd__job_value *value, struct hd__text *out)
{
    for (const char *at = value->needs; at; at = strchr(at, '&'), at = at ? at + 1 : NULL) {
        struct need need = read_need(job, value, at);
        if (need.holds)
            continue;
        hd__text_add(out, "%s: warning: %s has no effect where %s is %s: leave it out", value->origin, value->path,
                     need.key, need.now ? need.now : "not set");
        hd__text_add(out, need.first ? ", or say %s=%s\n" : "\n", need.key, need.first);
        return;
    }
}

void hd__job_notes(struct hd__job *job, struct hd__text *out)
{
    for (uint64_t i = 0; i < job->n_strategies; i++)
        if (job->strategies[i]->because)
            hd__text_add(out, "%s: strategy %s is used (add {use: %s, ...} to `strategies` to set its options)\n",
                         job->strategies[i]->because, job->strategies[i]->use, job->strategies[i]->use);
    for (uint32_t i = 0; i < job->values.count; i++)
        note_idle(job, &job->values.at[i], out);
}
