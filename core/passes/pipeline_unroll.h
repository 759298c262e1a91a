/* Template and actions -> code of this program's stage: pipeline_unroll.c. */
#ifndef HD_CORE_PASSES_PIPELINE_UNROLL_H
#define HD_CORE_PASSES_PIPELINE_UNROLL_H

#include "core/program/program.h"

void hd__unroll_stages(struct hd_program *p); /* fills hd__param.stages */
/* One step: all micro-batches in the order of the stage's actions. */
void hd__unroll_step(struct hd_program *p, struct hd__code_section *section);
/* One micro-batch, forward only; kept_logits is set on the stage that makes them. */
void hd__unroll_eval(struct hd_program *p, struct hd__code_section *section);

#endif
