#include "isa.h"

#include <pthread.h>
#if defined __x86_64__ && defined __GNUC__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int open_devices;       /* under the lock */
static int in_use = -1, asked; /* atomic; in_use -1: not looked yet */

const char *cpu_isa_name(int isa)
{
    static const char *const names[CPU_ISA_COUNT] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};
    return names[isa];
}

#if defined __x86_64__ && defined __GNUC__

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* CPUID leaf 7 says AMX-TILE and AMX-BF16; the kernel grants the state. */
static int has_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & (1u << 22)) || !(edx & (1u << 24)))
        return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

int cpu_isa_best(void)
{
    if (!has_avx2())
        return CPU_ISA_BASELINE;
    if (!has_avx512())
        return CPU_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return CPU_ISA_AVX512;
    return has_amx() ? CPU_ISA_AMX : CPU_ISA_AVX512_BF16;
}

#else

int cpu_isa_best(void)
{
    return CPU_ISA_BASELINE;
}

#endif

int cpu_isa(void)
{
    int isa = __atomic_load_n(&in_use, __ATOMIC_RELAXED);
    if (isa < 0) { /* the same answer whoever asks first */
        isa = cpu_isa_best();
        __atomic_store_n(&in_use, isa, __ATOMIC_RELAXED);
    }
    return isa;
}

int cpu_isa_asked(void)
{
    return __atomic_load_n(&asked, __ATOMIC_RELAXED);
}

int32_t cpu_isa_open(int isa, struct hd_error *err)
{
    int32_t rc = HD_OK;
    int best = cpu_isa_best();
    if (isa > best)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "device.isa: %s: this machine's processor has no more than %s: ask for that or less, or leave "
                       "device.isa out",
                       cpu_isa_name(isa), best == CPU_ISA_BASELINE ? "its baseline" : cpu_isa_name(best));
    pthread_mutex_lock(&lock);
    if (open_devices && isa != cpu_isa_asked()) {
        rc = hd_fail(err, HD_E_INVALID,
                     "device.isa: %s: another device of this process is open with %s, and they share their kernels: "
                     "close it first, or ask for the same",
                     isa == CPU_ISA_AUTO ? "auto" : cpu_isa_name(isa),
                     cpu_isa_asked() == CPU_ISA_AUTO ? "auto" : cpu_isa_name(cpu_isa_asked()));
    } else {
        open_devices++;
        __atomic_store_n(&asked, isa, __ATOMIC_RELAXED);
        __atomic_store_n(&in_use, isa == CPU_ISA_AUTO ? best : isa, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void cpu_isa_close(void)
{
    pthread_mutex_lock(&lock);
    open_devices--;
    pthread_mutex_unlock(&lock);
}
