/* Options that change nothing: with the default in place of the job's value, all stages have the same program. */
#include <stdlib.h>

#include "cli/warnings/warnings.h"
#include "service/train/agreement.h"

enum { INSTRUCTIONS = 20000 }; /* of all stages at most: a tenth of a second for each option */

/* The programs of the job with one more word; 0 where it cannot be compiled. */
static uint64_t hash_with(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded,
                          const char *word)
{
    struct hd__job *job = NULL;
    struct hd__compiled *compiled = NULL;
    struct hd_error unused = HD_ERROR_INIT;
    size_t n = arguments->n_overrides;
    const char **words = hd__alloc((n + 1) * sizeof *words);
    for (size_t i = 0; i <= n; i++)
        words[i] = i < n ? arguments->overrides[i] : word;
    uint64_t found = 0;
    if (!hd__job_load(arguments->file, words, n + (word != NULL), &job, &unused) &&
        !hd__job_resolve(job, loaded->job->ranks, &unused) &&
        !hd__exec_compile_with(job, loaded->plugins, HD__COMPILE_ESTIMATE, &compiled, &unused))
        found = hd__train_hash_programs(compiled);
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    free(words);
    return found;
}

static int is_small(const struct hd__compiled *c)
{
    uint64_t n = 0;
    for (int32_t s = 0; s < c->n_stages; s++)
        for (uint32_t k = 0; k < c->stage[s]->sections.count; k++)
            n += c->stage[s]->sections.at[k].code.count;
    return n <= INSTRUCTIONS;
}

/* A value near the job's; NULL where there is no such thing. */
static char *neighbour(const struct hd__job_value *v)
{
    if (json_is_integer(v->json))
        return hd__format("%s=%" JSON_INTEGER_FORMAT, v->path, json_integer_value(v->json) + 1);
    int on = !strcmp(v->text, "true"), off = !strcmp(v->text, "false");
    return on || off ? hd__format("%s=%s", v->path, on ? "false" : "true") : NULL;
}

/* An automatic default may come to the same as what the job says: then another value must make no difference either. */
static int is_idle(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded,
                   const struct hd__job_value *v, uint64_t now)
{
    char *plain = hd__format("%s=%s", v->path, v->plain), *next = neighbour(v);
    int automatic = !strcmp(v->plain, "auto") || !strcmp(v->plain, "0") || !strcmp(v->plain, "-1");
    int idle = hash_with(arguments, loaded, plain) == now &&
               (!automatic || (next && hash_with(arguments, loaded, next) == now));
    free(plain);
    free(next);
    return idle;
}

/* The program is made by these plug-ins and keys. On one rank strategies have nothing to do. */
static int is_of_program(const struct hd__cli_job *loaded, const struct hd__job_value *v)
{
    uint32_t kind = v->owner ? v->owner->kind : 0;
    return kind == HD_KIND_MODEL || (kind == HD_KIND_STRATEGY && loaded->job->ranks > 1) ||
           (!v->owner && !strncmp(v->path, "precision.", 10));
}

void hd__warn_idle_options(const struct hd__cli_job_arguments *arguments, const struct hd__cli_job *loaded,
                           struct hd__text *out)
{
    uint64_t now = 0;
    if (loaded->words || !is_small(loaded->compiled))
        return;
    hd__log_setup(HD_LOG_ERROR, NULL); /* warnings of jobs that are only compared */
    for (uint32_t i = 0; i < loaded->job->values.count; i++) {
        const struct hd__job_value *v = &loaded->job->values.at[i];
        if (!v->plain || !is_of_program(loaded, v) || v->flags & HD_OPTION_PATH)
            continue;
        now = now ? now : hash_with(arguments, loaded, NULL);
        if (now && is_idle(arguments, loaded, v, now))
            hd__text_add(out,
                         "%s: warning: %s (%s) has no effect: the job's program is the same with %s, its default: "
                         "leave it out\n",
                         v->origin, v->written, v->text, v->plain);
    }
    hd__log_setup(HD_LOG_INFO, NULL);
}
