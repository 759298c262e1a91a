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

struct nll {
    enum { IN = 3, OUT = 1 };
    template <class C> CU_DEVICE void at(const C *x, C *y)
    {
        y[0] = cu_log(x[0]) + x[1] - x[2];
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

CU_MAP(swiglu)
CU_MAP(swiglu_grad)
CU_MAP(gelu)
CU_MAP(gelu_grad)
CU_MAP(nll)
CU_MAP(nll_grad)
