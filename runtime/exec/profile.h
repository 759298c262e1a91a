/* runtime/exec/profile: time by kind of instruction on one rank (`metrics.profile: true`).
 *
 * A row has the instructions of one op, phase and, for products, size. Rates count the FLOPs of the op table and the
 * bytes of the operands, once each. */
#ifndef HD_RUNTIME_EXEC_PROFILE_H
#define HD_RUNTIME_EXEC_PROFILE_H

#include "runtime/exec/roofline.h"

struct hd__profile;

/* The program outlives it. Caller frees. */
struct hd__profile *hd__exec_profile_create(const struct hd_program *p);
void hd__exec_profile_free(struct hd__profile *profile); /* NULL is fine */

/* Adds a run of instruction `instr` of section `section`, both indices. */
void hd__exec_profile_add(struct hd__profile *profile, uint32_t section, uint32_t instr, double seconds);

/* "F einsum 2048x1536x384": M, N and K of a product, without the dims that all three operands have. */
void hd__exec_instr_kind(const struct hd_program *p, const struct hd__instr *i, char out[96]);

/* Seconds that an instruction was planned to take. */
typedef double (*hd__exec_planned)(const struct hd_program *p, const struct hd__instr *i);

/* Prints the rows by time, over `steps` steps that took `seconds` in all; `peak`: FLOP/s of the device, 0 if
 * unknown; `planned`, `rates`: for columns beside what was measured, or NULL. */
void hd__exec_profile_print(const struct hd__profile *profile, int64_t steps, double seconds, double peak,
                            hd__exec_planned planned, const struct hd__roofline_rates *rates, struct hd__text *out);
/* Has its first operand fewer than 4 bytes an element? */
static inline int hd__instr_is_narrow(const struct hd_program *p, const struct hd__instr *i)
{
    return i->n_in && hd_dtype_size(hd__tensor_const(p, i->in[0])->dtype) < 4;
}
/* Seconds by op, of instructions that are not narrow and of those that are. */
struct hd__op_seconds {
    double measured[HD_OP_LIMIT][2], planned[HD_OP_LIMIT][2];
};
void hd__exec_profile_ops(const struct hd__profile *profile, hd__exec_planned planned, struct hd__op_seconds *out);
/* Seconds that all instructions of a kind (HD__ROOFLINE_...) were measured to take. */
double hd__exec_profile_seconds(const struct hd__profile *profile, int kind);

#define HD__PROFILE_BEGINS "# stage " /* first bytes of such a file */
/* Writes the seconds of each model block per micro-batch, without update and communication: "# stage S of N", then
 * BLOCK,SECONDS lines. `micros`: micro-batches that were profiled. HD_E_IO, HD_E_INVALID. */
int32_t hd__exec_profile_write_blocks(const struct hd__profile *profile, int64_t micros, const char *path,
                                      struct hd_error *err);

#endif
