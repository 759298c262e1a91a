/* Drives a device plugin through its vtable: instructions made from one-line descriptions, random operands.
 *
 * Operands are described by their dims, one letter each, with an optional kind before a colon:
 *     "bsh"    the dtype of the test            "i:bs"  int32 ids from 0 to below the extent of v (or p)
 *     "f:bs"   fp32 (fp64 where the test is)    "d:"    fp64, a scalar
 *     "+:bs"   as "f:", positive values                "n:bs"  int32 indices in documents, of every other row short ones
 * and dims by extents and starts: "b=2 s=5@10 h=7". A letter is its own dim id. */
#ifndef HD_CONFORMANCE_DEVICE_HARNESS_H
#define HD_CONFORMANCE_DEVICE_HARNESS_H

#include "heddle/device.h"
#include "heddle/host.h"
#include "heddle/optimizer.h"

/* Settings of device cpu, as its option table lays them out. */
enum { H_FAST = 0, H_REFERENCE = 1 };

struct h_device {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    char settings[512];
};

/* Settings that a device under test is opened with, but for what a call sets; NULL: zeros. The reference's are zeros. */
extern const void *h_settings;

/* Opens the plugin named by the environment variable HEDDLE_TEST_DEVICE; fails the test where it cannot. H_REFERENCE
 * opens the one that HEDDLE_TEST_REFERENCE names, where it is set. */
struct h_device *h_open(int threads, int kernels);
/* The same with one more option. */
struct h_device *h_open_with(int threads, int kernels, const char *option, int64_t value);
void h_close(struct h_device *d);
/* Does the device under test say all of these, HD_DEVICE_...? Opens nothing; outside tests, too. */
int h_can(uint64_t caps);
/* Has the device under test memory of its own, and streams? Opens nothing; outside tests, too. */
int h_has_memory(void);
int h_is_staged(const struct h_device *d);
/* The plugin's component, for tests of its descriptor. */
const struct hd_component *h_component(void);
/* Lines that devices logged at WARN or worse since the test began, and the last of them. */
extern int h_warnings;
extern long h_allocations;   /* since the process began, where no sanitizer counts them */
extern char h_last_log[512]; /* the last of them */
/* those and what is worth to know, line after line without ends; whoever reads it empties it before */
extern char h_log[8192];

struct h_case {
    const char *name;
    uint32_t op;
    const char *in, *out; /* descriptions, separated by spaces */
    const char *dims;
    struct hd_attrs attrs;
};

/* An instruction with operands of its own. */
struct h_instr {
    struct hd_instr_desc d;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    void *memory[HD_MAX_IN + HD_MAX_OUT];
    size_t sizes[HD_MAX_IN + HD_MAX_OUT]; /* bytes of each, guards included */
    int guard_bytes;
};

/* Operands in `dtype` with random values from seed (outputs too: some ops add to them). */
struct h_instr *h_make(const struct h_case *c, uint32_t dtype, uint64_t seed);
/* The same instruction with the same values, all floating operands in dtype. */
struct h_instr *h_as(const struct h_instr *from, uint32_t dtype);
/* Frees; fails the test where a kernel wrote outside an operand. */
void h_free(struct h_instr *i);

/* Prepares, launches once, releases; fails the test on an error. A device with memory of its own gets copies of the
 * operands, and what it wrote comes back. */
void h_run(struct h_device *d, struct h_instr *i);
int32_t h_prepare(struct h_device *d, struct h_instr *i, struct hd_kernel **k, struct hd_error *err);
/* Fails the test where a case is not refused with this code and a message that has these words. */
void h_refused(struct h_device *d, const struct h_case *c, uint32_t dtype, int32_t code, const char *says);

double h_get(const struct hd_operand *o, int64_t i);
void h_set(const struct hd_operand *o, int64_t i, double v);
void h_copy(const struct hd_operand *to, const struct hd_operand *from);
/* Norm of the difference over the norm of `want`; infinite where a NaN is. */
double h_distance(const struct hd_operand *got, const struct hd_operand *want);
/* Fails the test with the case's name and the numbers where an output is further away than tolerance. */
void h_near(const char *name, const struct h_instr *got, const struct h_instr *want, double tolerance);
/* Fails the test where outputs differ in a bit. */
void h_equal(const char *name, const struct h_instr *a, const struct h_instr *b);

/* Runs one on d and the other on the reference, compares as h_near does, frees both. */
void h_check(struct h_device *d, struct h_instr *got, struct h_instr *want, double tolerance);

/* Runs a case with fast kernels in dtype, with 1 and 3 threads, plain and (where `adds`) accumulating, against the
 * reference in fp64 on the same values: near, the same bits for both thread counts, and no kernel declined. */
void h_fast_case(const struct h_case *c, uint32_t dtype, double tolerance, int adds);

double h_bf16(double v);          /* rounded to it, to nearest even */
double h_random(uint64_t *state); /* in [-1, 1) */

#endif
