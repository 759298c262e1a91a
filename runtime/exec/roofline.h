/* runtime/exec/roofline: the least time of a step on one rank, by two rates of its machine and what it waits for.
 *
 * A product (whatever the op table has FLOPs for: einsums, attention, the head) takes its FLOPs at the rate of products
 * or its bytes at the rate of copies, whichever is longer. Any other instruction takes its bytes, each operand once.
 * Communication takes what compute waited for it; what overlaps takes nothing. */
#ifndef HD_RUNTIME_EXEC_ROOFLINE_H
#define HD_RUNTIME_EXEC_ROOFLINE_H

#include "core/program/program.h"

struct hd__roofline_rates {
    double flops,
        bytes; /* a second: of the best product in the compute dtype; read and written by a copy. 0: unknown */
    /* Bytes of an instruction; NULL: hd__instr_moved_bytes. */
    double (*bytes_of)(const struct hd_program *p, const struct hd__instr *i);
    const char *source; /* "measured at the start", or a machine file's name */
};

enum { HD__ROOFLINE_NONE, HD__ROOFLINE_PRODUCT, HD__ROOFLINE_OTHER };
/* HD__ROOFLINE_NONE: it computes nothing, or it is communication or a copy, which overlap. */
int hd__roofline_kind(const struct hd_program *p, const struct hd__instr *i);
double hd__roofline_instr(const struct hd_program *p, const struct hd__instr *i,
                          const struct hd__roofline_rates *rates); /* seconds */

struct hd__roofline {
    double flops, bytes;                /* of products; of all else */
    double products_s, other_s, comm_s; /* comm_s: as given */
    double seconds;                     /* their sum */
};
/* A step's; a section that runs every N steps counts 1/N. `comm_s`: seconds that compute waits for communication. */
struct hd__roofline hd__roofline_of(const struct hd_program *p, const struct hd__roofline_rates *rates, double comm_s);

/* Said of a step that takes less than so much of its roofline. */
#define HD__ROOFLINE_DOUBTED 0.95
#define HD__ROOFLINE_WORDS "its rates are below what ran: they were measured on a busy machine, or on another one"

/* "roofline of rank 0: 312.4 ms a step ... takes 1.77 times the roofline": three lines about a step of `step_s`, the
 * last without its end. */
void hd__roofline_text(const struct hd__roofline *r, const struct hd__roofline_rates *rates, double step_s,
                       struct hd__text *out);

#endif
