/* What strategies are lent: queries and edits of a lowered program (heddle/experimental/strategy.h). */
#ifndef HD_CORE_PROGRAM_PASS_H
#define HD_CORE_PROGRAM_PASS_H

#include "core/program/program.h"
#include "heddle/experimental/strategy.h"

extern const struct hd_pass_api hd__pass_api;

/* How the program calls the optimizer, without knowing the plugin: filled by compile/. */
struct hd__optimizer {
    const struct hd_optimizer_ops *ops;
    const void *settings;
};

/* Between these two a strategy's transform may run: edits are recorded, then applied at once. */
void hd__pass_begin(struct hd_program *p, const struct hd__optimizer *optimizer);
int32_t hd__pass_end(struct hd_program *p, struct hd_error *err);

#endif
