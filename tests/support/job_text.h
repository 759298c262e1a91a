/* A job from a text, compiled with the built plugins; a model and data to write behind other sections. */
#ifndef HD_TESTS_SUPPORT_JOB_TEXT_H
#define HD_TESTS_SUPPORT_JOB_TEXT_H

#include <check.h>
#include <string.h>

#include "runtime/exec/select.h"

static struct hd__plugins *registry;
static struct hd__job *job;
static struct hd__compiled *compiled;
static struct hd_error err;

#define LAYERS(family) "model: {use: transformer, family: " family ", layers: 2, hidden: 16, heads: 4, vocab: 256"
#define DENSE LAYERS("llama") "}\n"
#define MOE LAYERS("mixtral") ", experts: 4, experts_per_token: 2}\n"
#define WITHOUT_DATA "job: {steps: 3}\noptimizer: {use: adamw, lr: 1e-3}\n"
#define REST WITHOUT_DATA "data: {train: x, seq_len: 16, batch: 4}\n"

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    registry = hd__plugins_create(hd__exec_host_table());
    ck_assert_int_eq(hd__plugins_add_folder(registry, PLUGINS, &err), HD_OK);
}

static void forget(void)
{
    hd__exec_compiled_free(compiled);
    hd__job_free(job);
    compiled = NULL;
    job = NULL;
}

static void tear_down(void)
{
    forget();
    hd__plugins_destroy(registry);
}

static int32_t compile(const char *text)
{
    int32_t rc;
    forget();
    rc = hd__job_parse("job.yaml", text, strlen(text), NULL, 0, &job, &err);
    if (!rc)
        rc = hd__job_resolve(job, 0, &err);
    return rc ? rc : hd__exec_compile(job, registry, &compiled, &err);
}

#endif
