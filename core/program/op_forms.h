/* core/program/op_forms: the op's row against the dims and attributes of an instruction that a model emits. */
#ifndef HD_CORE_PROGRAM_OP_FORMS_H
#define HD_CORE_PROGRAM_OP_FORMS_H

#include "core/program/program.h"

/* Fails the program where the row (form, wrong) forbids the instruction. */
void hd__check_form(struct hd_program *p, const struct hd__instr *i);

#endif
