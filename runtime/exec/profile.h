/* runtime/exec/profile: where a rank's time goes, by kind of instruction (`metrics.profile: true`).
 *
 * Instructions of one op, phase and, for products, one size are one row. A row's rates are those of what the op's table
 * row counts: FLOPs, and the bytes of its operands, once each. */
#ifndef HD_RUNTIME_EXEC_PROFILE_H
#define HD_RUNTIME_EXEC_PROFILE_H

#include "core/program/program.h"

struct hd__profile;

/* Of a program that outlives it. Caller frees. */
struct hd__profile *hd__exec_profile_create(const struct hd_program *p);
void hd__exec_profile_free(struct hd__profile *profile); /* NULL is fine */

/* Instruction `instr` of section `section` (both by index) took so long. */
void hd__exec_profile_add(struct hd__profile *profile, uint32_t section, uint32_t instr, double seconds);

/* The table: rows by time, over `steps` steps that took `seconds` together; `peak`: FLOP/s of the device, 0 if unknown. */
void hd__exec_profile_print(const struct hd__profile *profile, int64_t steps, double seconds, double peak,
                            struct hd__text *out);

/* Writes what each block of the model takes of a micro-batch, update and communication left out: "# stage S of N", then
 * BLOCK,SECONDS lines. `micros`: micro-batches that were profiled. HD_E_IO. */
int32_t hd__exec_profile_write_blocks(const struct hd__profile *profile, int64_t micros, const char *path,
                                      struct hd_error *err);

#endif
