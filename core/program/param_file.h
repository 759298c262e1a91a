/* core/program/param_file: a parameter's place in other people's files. */
#ifndef HD_CORE_PROGRAM_PARAM_FILE_H
#define HD_CORE_PROGRAM_PARAM_FILE_H

#include "core/program/program.h"

/* The file axis of a dim; -1: it counts tensors. */
int32_t hd__param_file_axis(const struct hd_param_desc *d, int32_t dim);

/* A file tensor as rows of `width` elements, of which the parameter has `own` from `skip`: `span` of the `parts` of
 * file axis `axis`. One that is whole has one row and axis -1. */
struct hd__file_part {
    int64_t own, width, skip, parts, span;
    int32_t axis;
};
struct hd__file_part hd__param_file_part(const struct hd_program *p, const struct hd__param *param);

/* Fails the program where file_axes or the parts of a parameter cannot be. */
void hd__check_param_file(struct hd_program *p, const struct hd__param *param);

#endif
