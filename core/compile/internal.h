/* core/compile/internal: what the files of this room share. */
#ifndef HD_CORE_COMPILE_INTERNAL_H
#define HD_CORE_COMPILE_INTERNAL_H

#include "core/compile/compile.h"

/* fusions.c: hd_program.fusions of a program with this precision. `flags`: HD__COMPILE_... */
uint32_t hd__compile_fusions(const struct hd__compiled *c, const struct hd__precision *precision, uint32_t flags);

#endif
