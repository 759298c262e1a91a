/* Inverse frequencies of rotary positions (arXiv:2104.09864), and their two plain changes for long texts. */
#include "internal.h"

#include <math.h>

/* Llama 3.1: long waves slow down by `factor`, short ones stay, those between are mixed. */
static double llama3(const struct tf_rope *rope, double frequency)
{
    double length = rope->original_length, wave = 2 * M_PI / frequency;
    if (wave < length / rope->high_freq_factor)
        return frequency;
    if (wave > length / rope->low_freq_factor)
        return frequency / rope->factor;
    double smooth = (length / wave - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

void tf_rope_table(const struct tf_rope *rope, int64_t head_dim, double *table)
{
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * (double)i / (double)head_dim);
        table[i] = rope->kind == TF_ROPE_LINEAR   ? frequency / rope->factor
                   : rope->kind == TF_ROPE_LLAMA3 ? llama3(rope, frequency)
                                                  : frequency;
    }
}
