/* A job from text, compiled with the plugins of the build tree. */
#ifndef HD_TESTS_SUPPORT_COMPILE_H
#define HD_TESTS_SUPPORT_COMPILE_H

#include <check.h>

#include "runtime/exec/select.h"

struct compiled {
    struct hd__job *job;
    struct hd__plugins *plugins;
    struct hd__compiled *c;
};

/* Asserts that it compiles. `ranks` 0: as the job says. */
void compile_text(struct compiled *out, const char *text, const char *const *overrides, size_t n, int64_t ranks);
/* The same, but returns the code; err has the message. */
int32_t try_compile_text(struct compiled *out, const char *text, const char *const *overrides, size_t n, int64_t ranks,
                         struct hd_error *err);
/* Asserts that it compiles with these flags of hd__exec_compile_with. */
void compile_flags(struct compiled *out, const char *text, uint32_t flags);
/* FLOPs of one run of a section of the first stage's program. */
double flops_of(const struct compiled *c, const char *section);
void compiled_free(struct compiled *c);

#endif
