/* heddle/gradient_clipping.h: the factor by which every update scales its gradients (hd_attrs.clip, the option `clip`
 * of optimizers). It is applied inside the update kernels, from the global norm that the step program computes. */
#ifndef HEDDLE_GRADIENT_CLIPPING_H
#define HEDDLE_GRADIENT_CLIPPING_H

/* Clipping factor of PyTorch's clip_grad_norm_: min(1, clip / (norm + 1e-6)). norm2: squared global norm of the
 * gradients after inv_scale. clip 0: no clipping. */
static inline double hd_clip_factor(double norm2, double clip, double (*square_root)(double))
{
    double f = clip > 0 ? clip / (square_root(norm2) + 1e-6) : 1.0;
    return f < 1.0 ? f : 1.0;
}

#endif
