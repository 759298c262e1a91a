/* Fuzzing the job file: any bytes are a job or an error, never a crash; and what is printed of an accepted job reads
 * back. tests/fuzz/run builds and runs it with libFuzzer; tests/core/job/test_fuzz.c replays it over seeds and their
 * mutations. The first line, where it begins with #!, is an override; so the corpus also drives the command line. */
#include "tests/fuzz/job.h"

#include <stdlib.h>

#include "core/job/job.h"

struct settings {
    double lr, wait;
    int64_t stage, bucket;
    int32_t order, overlap;
    const char *path;
    struct hd_list betas;
};

#define AT(field) offsetof(struct settings, field)
static const struct hd_option options[] = {
    {.name = "lr", .type = HD_OPT_FLOAT, .value = "1e-3", .offset = AT(lr)},
    {.name = "wait", .type = HD_OPT_DURATION, .value = "1s", .offset = AT(wait)},
    {.name = "stage", .type = HD_OPT_INT, .value = "0", .min = 0, .max = 3, .offset = AT(stage), .aliases = "level"},
    {.name = "bucket", .type = HD_OPT_SIZE, .value = "1MiB", .offset = AT(bucket)},
    {.name = "order", .type = HD_OPT_ENUM, .value = "1f1b", .choices = "gpipe|1f1b", .offset = AT(order)},
    {.name = "overlap", .type = HD_OPT_BOOL, .value = "true", .offset = AT(overlap)},
    {.name = "offload.path", .type = HD_OPT_STRING, .offset = AT(path)},
    {.name = "betas", .type = HD_OPT_LIST, .value = "[0.9, 0.999]", .offset = AT(betas)},
};

static void parse_sections(struct hd__job *job)
{
    struct hd_error err = HD_ERROR_INIT;
    struct settings s = {0};
    struct hd__job_section *all[] = {job->device, job->comm,       job->optimizer,     job->model,
                                     job->data,   job->checkpoint, job->strategies[0], job->comm_axis[HD_AXIS_TP]};
    for (uint64_t i = 0; i < job->n_sinks; i++)
        hd__job_section_parse(job, job->sinks[i], options, HD__COUNT(options), sizeof options[0], &s, &err);
    for (size_t i = 0; i < HD__COUNT(all); i++)
        if (all[i])
            hd__job_section_parse(job, all[i], options, HD__COUNT(options), sizeof options[0], &s, &err);
}

static void must(int good, const char *what, const char *why, const char *text)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n%s\n", what, why, text);
    abort();
}

/* What was printed must be a job that prints the same, but for the origins. */
static void check_printed(const struct hd__job *job)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text text = {0};
    struct hd__job *again = NULL;
    hd__job_print(job, &text);
    must(!hd__job_parse("printed.yaml", text.at, text.length, NULL, 0, &again, &err), "does not read back", err.message,
         text.at);
    json_t *a = hd__job_json(job), *b;
    if (job->ranks)
        must(!hd__job_resolve(again, job->ranks, &err), "does not resolve again", err.message, text.at);
    parse_sections(again);
    b = hd__job_json(again);
    if (!json_equal(a, b)) {
        json_dumpf(a, stderr, 0);
        json_dumpf(b, stderr, 0);
    }
    must(json_equal(a, b), "reads back as another job", "", text.at);
    json_decref(a);
    json_decref(b);
    hd__job_free(again);
    hd__text_free(&text);
}

int fuzz_job(const uint8_t *data, size_t size)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    char word[200] = "";
    if (size > 2 && data[0] == '#' && data[1] == '!') {
        size_t n = 0;
        while (n + 2 < size && n + 1 < sizeof word && data[n + 2] && data[n + 2] != '\n') {
            word[n] = (char)data[n + 2];
            n++;
        }
        word[n] = 0;
    }
    const char *words[] = {word};
    int32_t rc = hd__job_parse("job.yaml", (const char *)data, size, words, *word != 0, &job, &err);
    if (!rc) {
        hd__job_resolve(job, size % 5, &err);
        parse_sections(job);
        check_printed(job);
        hd__job_where(job, word);
        hd__job_free(job);
        return 1;
    }
    must(rc == HD_E_INVALID && *err.message, "an error without a message", err.message, "");
    return 0;
}

#ifdef FUZZ_MAIN
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_job(data, size);
    return 0;
}
#endif
