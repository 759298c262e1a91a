/* The instruction set that kernels are compiled for and chosen by: the best of this machine, or a lesser one that
 * device.isa asks for. Each has all of those before it. It is the process's: devices that are open at once share it. */
#ifndef HD_DEVICE_CPU_ISA_H
#define HD_DEVICE_CPU_ISA_H

#include "heddle/host.h"

enum { CPU_ISA_BASELINE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_AVX512_BF16, CPU_ISA_AMX, CPU_ISA_COUNT };

enum { CPU_ISA_AUTO = 0 };                                 /* as `asked`, in place of the baseline */
#define CPU_ISA_CHOICES "auto|avx2|avx512|avx512_bf16|amx" /* of device.isa, in the order of the enum */

const char *cpu_isa_name(int isa);
int cpu_isa_best(void);  /* of this machine */
int cpu_isa(void);       /* in use */
int cpu_isa_asked(void); /* CPU_ISA_AUTO, or the one that a job demands */

/* From here to the close kernels are those of `asked`. HD_E_UNSUPPORTED: the machine lacks it; HD_E_INVALID: another
 * device of this process is open with another one. */
int32_t cpu_isa_open(int asked, struct hd_error *err);
void cpu_isa_close(void);

/* Vectors of the one in use: an index into tables of one entry a width. */
enum { CPU_PLAIN, CPU_AVX2, CPU_AVX512, CPU_VECTORS };

static inline int cpu_vectors(void)
{
    int isa = cpu_isa();
    return isa < CPU_AVX512 ? isa : CPU_AVX512;
}

#endif
