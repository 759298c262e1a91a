#include "tests/support/compile.h"

#include "core/program/ops.h"

static int32_t compile(struct compiled *out, const char *text, const char *const *overrides, size_t n, int64_t ranks,
                       uint32_t flags, struct hd_error *err)
{
    int32_t rc;
    *out = (struct compiled){.plugins = hd__plugins_create(hd__exec_host_table())};
    rc = hd__plugins_add_folder(out->plugins, PLUGINS, err);
    if (!rc)
        rc = hd__job_parse("job.yaml", text, strlen(text), overrides, n, &out->job, err);
    for (uint64_t i = 0; !rc && i < out->job->plugin_path.count; i++)
        rc = hd__plugins_add_folder(out->plugins, out->job->plugin_path.text[i], err);
    if (!rc)
        rc = hd__job_resolve(out->job, ranks, err);
    if (!rc)
        rc = hd__exec_compile_with(out->job, out->plugins, flags, &out->c, err);
    return rc;
}

int32_t try_compile_text(struct compiled *out, const char *text, const char *const *overrides, size_t n, int64_t ranks,
                         struct hd_error *err)
{
    return compile(out, text, overrides, n, ranks, 0, err);
}

void compile_flags(struct compiled *out, const char *text, uint32_t flags)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(!compile(out, text, NULL, 0, 0, flags, &err), "%s", err.message);
}

void compile_text(struct compiled *out, const char *text, const char *const *overrides, size_t n, int64_t ranks)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(!try_compile_text(out, text, overrides, n, ranks, &err), "%s", err.message);
}

double flops_of(const struct compiled *c, const char *section)
{
    const hd__code *code = &hd__program_section(c->c->stage[0], section)->code;
    double flops = 0;
    for (uint32_t k = 0; k < code->count; k++)
        flops += hd__instr_flops(c->c->stage[0], &code->at[k]);
    return flops;
}

void compiled_free(struct compiled *c)
{
    hd__exec_compiled_free(c->c);
    hd__plugins_destroy(c->plugins);
    hd__job_free(c->job);
}
