/* Elements for themselves: a function of N inputs at one index, written or added to M outputs there.
 *
 * Bytes an element: every input once, every output once (twice where it is added to). Outputs may be the memory of
 * inputs. */
#include "kernels/elementwise.cuh"

struct swiglu {
    enum { IN = 2, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = x[0] * cu_sigmoid(x[0]) * x[1];
    }
};

struct swiglu_grad {
    enum { IN = 3, OUT = 2 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        C s = cu_sigmoid(x[0]);
        y[0] = x[2] * x[1] * s * (1 + x[0] * (1 - s));
        y[1] = x[2] * x[0] * s;
    }
};

/* sqrt(2/pi) and the cubic coefficient of GELU's tanh form: Hendrycks and Gimpel, arXiv 1606.08415, section 2. */
#define GELU_A 0.79788456080286535588
#define GELU_B 0.044715

struct gelu {
    enum { IN = 1, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        /* 0.5 (1 + tanh u) is sigmoid(2 u). */
        y[0] = x[0] * cu_sigmoid((C)(2 * GELU_A) * (x[0] + (C)GELU_B * x[0] * x[0] * x[0]));
    }
};

struct gelu_grad {
    enum { IN = 2, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        C square = x[0] * x[0], s = cu_sigmoid((C)(2 * GELU_A) * (x[0] + (C)GELU_B * square * x[0]));
        C slope = (C)(2 * GELU_A) * (1 + (C)(3 * GELU_B) * square);
        /* s (1 - s) is 0 where x is far from 0, and there slope may be infinite times it */
        y[0] = x[1] * (s + (s > 0 && s < 1 ? x[0] * s * (1 - s) * slope : 0));
    }
};

/* P(X <= x) for a normal X. */
template <class C> CU_DEVICE C normal_share(C x)
{
    return (C)0.5 * erfc((C)-0.70710678118654752440 * x);
}

struct gelu_erf {
    enum { IN = 1, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = x[0] * normal_share(x[0]);
    }
};

struct gelu_erf_grad {
    enum { IN = 2, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        C peak = (C)0.39894228040143267794 * exp((C)-0.5 * x[0] * x[0]); /* the density of x */
        y[0] = x[1] * (normal_share(x[0]) + x[0] * peak);
    }
};

struct relu2 {
    enum { IN = 1, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = x[0] < 0 ? 0 : x[0] * x[0];
    }
};

struct relu2_grad {
    enum { IN = 2, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = x[0] < 0 ? 0 : 2 * x[0] * x[1];
    }
};

struct scale {
    enum { IN = 1, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y, C by)
    {
        y[0] = by * x[0];
    }
};

struct softcap {
    enum { IN = 1, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y, C cap)
    {
        y[0] = cap * tanh(x[0] / cap);
    }
};

struct softcap_grad {
    enum { IN = 2, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y, C cap)
    {
        C t = x[0] / cap;
        y[0] = x[1] * (1 - t * t);
    }
};

struct nll {
    enum { IN = 3, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = cu_log(x[0]) + (x[1] - x[2]);
    }
};

struct nll_grad {
    enum { IN = 2, OUT = 2 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = x[1] / x[0];
        y[1] = -x[1];
    }
};

/* ---- random numbers, for kernels that are tried */

CU_DEVICE float noise(uint32_t seed, uint64_t i)
{
    uint32_t x = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) ^ seed * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)(x >> 8) * 0x1p-23f - 1;
}

static __global__ void __launch_bounds__(CU_MAP_THREADS) fill_kernel(cu_out to, int64_t n, uint32_t seed, float scale)
{
    for (int64_t i = cu_thread(); i < n; i += cu_threads())
        cu_put(to, i, scale * noise(seed, (uint64_t)i));
}

extern "C" cudaError_t cu_fill_random(void *to, uint32_t dtype, int64_t n, uint32_t seed, float scale,
                                      cudaStream_t stream)
{
    enum { BLOCKS = 1024 };
    cu_out out = {to, dtype, 0, 0, 0};
    return CU_LAUNCH(fill_kernel, BLOCKS, CU_MAP_THREADS, 0, stream, out, n, seed, scale);
}

/* ---- the ops */

CU_MAP(swiglu)
CU_MAP(swiglu_grad)
CU_MAP(gelu)
CU_MAP(gelu_grad)
CU_MAP(gelu_erf)
CU_MAP(gelu_erf_grad)
CU_MAP(relu2)
CU_MAP(relu2_grad)
CU_MAP(scale)
CU_MAP(softcap)
CU_MAP(softcap_grad)
CU_MAP(nll)
CU_MAP(nll_grad)
