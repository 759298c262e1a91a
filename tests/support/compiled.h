/* Small jobs, compiled: a llama of two layers of 8 with eight micro-batches of one sequence. The including file says
 * which plugins. */
#ifndef HD_TESTS_SUPPORT_COMPILED_H
#define HD_TESTS_SUPPORT_COMPILED_H

#include <stdio.h>
#include <string.h>

#include "tests/support/plugins.h"

struct job {
    struct hd__job *job;
    struct hd__compiled *c;
};

/* `more`: another line of the job, or "". Closed also where it failed. */
static int32_t open_job(struct job *j, const char *mesh, const char *strategies, const char *more, struct hd_error *err)
{
    char text[1024];
    int32_t rc;
    *j = (struct job){0};
    snprintf(
        text, sizeof text,
        "job: {name: small, steps: 8}\nmesh: {%s}\nstrategies: [%s]\noptimizer: {use: adamw, lr: 1e-2, clip: 1.0}\n"
        "model: {use: transformer, family: llama, layers: 2, hidden: 8, heads: 4, ffn: 8, vocab: 16, max_seq_len: 4}\n"
        "data: {train: none, seq_len: 4, batch: 8, micro_batch: 1}\n",
        mesh, strategies);
    rc = hd__job_parse("job", text, strlen(text), &more, *more != 0, &j->job, err);
    if (!rc)
        rc = hd__job_resolve(j->job, 0, err);
    return rc ? rc : hd__exec_compile(j->job, plugins, &j->c, err);
}

static void close_job(struct job *j)
{
    hd__exec_compiled_free(j->c);
    hd__job_free(j->job);
}

static inline struct hd_program *expect_job(struct job *j, const char *mesh, const char *strategies)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(!open_job(j, mesh, strategies, "", &err), "%s, %s: %s", mesh, strategies, err.message);
    return j->c->stage[0];
}

#endif
