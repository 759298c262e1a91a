/* A sum beside a norm, in one kernel, has the bits that two kernels give: forward t = x0 + x1 and the norm of t,
 * backward r + the gradient of x. Short and odd rows, and rows longer than any kernel keeps. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>

static const char *const shapes[] = {"b=2 s=3 h=7",   "b=2 s=9 h=64",   "b=2 s=65 h=513",
                                     "b=1 s=9 h=768", "b=1 s=3 h=2048", "b=1 s=3 h=4504"};
static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F16};
enum { SHAPES = sizeof shapes / sizeof shapes[0], DTYPES = sizeof dtypes / sizeof dtypes[0] };

static const struct {
    uint32_t sum_norm, norm, dx_sum, dx, grad_sum, dw;
    const char *weights; /* of the norm */
} norms[] = {
    {HD_OP_ADD_RMSNORM, HD_OP_RMSNORM, HD_OP_RMSNORM_DX_ADD, HD_OP_RMSNORM_DX, HD_OP_RMSNORM_GRAD_ADD, HD_OP_RMSNORM_DW,
     "h"},
    {HD_OP_ADD_LAYERNORM, HD_OP_LAYERNORM, HD_OP_LAYERNORM_DX_ADD, HD_OP_LAYERNORM_DX, HD_OP_LAYERNORM_GRAD_ADD,
     HD_OP_LAYERNORM_DW, "h h"},
};

static struct h_instr *make(uint32_t op, const char *in, const char *out, int shape, int dtype)
{
    struct h_case c = {"norm and sum", op, in, out, shapes[shape], {.eps = 1e-5}};
    return h_make(&c, dtypes[dtype], 7);
}

/* Runs op on some of i's operands. */
static void run_part(struct h_device *d, const struct h_instr *i, uint32_t op, const struct hd_operand *in,
                     uint32_t n_in, const struct hd_operand *out)
{
    struct h_instr part = *i;
    part.d.op = op;
    part.d.n_in = n_in;
    part.d.n_out = 1;
    memcpy(part.in, in, n_in * sizeof *in);
    part.out[0] = *out;
    part.d.in = part.in;
    part.d.out = part.out;
    h_run(d, &part);
}

static void check_forward(struct h_device *d, int norm, int shape, int dtype)
{
    char in[32];
    snprintf(in, sizeof in, "bsh bsh %s", norms[norm].weights);
    struct h_instr *one = make(norms[norm].sum_norm, in, "bsh bsh", shape, dtype);
    struct h_instr *two = make(norms[norm].sum_norm, in, "bsh bsh", shape, dtype);
    struct hd_operand of[] = {two->out[0], two->in[2], two->in[3]};
    h_run(d, one);
    run_part(d, two, HD_OP_ADD, two->in, 2, &two->out[0]);
    run_part(d, two, norms[norm].norm, of, two->d.n_in - 1, &two->out[1]);
    h_equal(shapes[shape], one, two);
    h_free(one);
    h_free(two);
}

static void check_backward(struct h_device *d, int norm, int shape, int dtype)
{
    struct h_instr *one = make(norms[norm].dx_sum, "bsh bsh h bsh", "bsh", shape, dtype);
    struct h_instr *two = make(norms[norm].dx_sum, "bsh bsh h bsh", "bsh bsh", shape, dtype);
    struct hd_operand of[] = {two->in[0], two->out[1]};
    h_run(d, one);
    run_part(d, two, norms[norm].dx, two->in + 1, 3, &two->out[1]);
    run_part(d, two, HD_OP_ADD, of, 2, &two->out[0]);
    two->d.n_out = 1;
    h_equal(shapes[shape], one, two);
    two->d.n_out = 2;
    h_free(one);
    h_free(two);
}

/* Device cpu's have the bits of two kernels; others may add the rows up in another order. */
static void check_weights(struct h_device *d, int norm, int shape, int dtype)
{
    char out[32];
    snprintf(out, sizeof out, "bsh %s", norms[norm].weights);
    struct h_instr *one = make(norms[norm].grad_sum, "bsh bsh h bsh", out, shape, dtype);
    struct h_instr *two = make(norms[norm].grad_sum, "bsh bsh h bsh", out, shape, dtype);
    struct h_instr part = *two;
    h_run(d, one);
    run_part(d, two, norms[norm].dx_sum, two->in, 4, &two->out[0]);
    part.d.op = norms[norm].dw;
    part.d.n_in = 2;
    part.d.n_out = two->d.n_out - 1;
    part.in[0] = two->in[1];
    part.in[1] = two->in[3];
    memcpy(part.out, two->out + 1, part.d.n_out * sizeof *part.out);
    part.d.in = part.in;
    part.d.out = part.out;
    h_run(d, &part);
    h_equal(shapes[shape], one, two);
    h_free(one);
    h_free(two);
}

START_TEST(bits_are_those_of_two_kernels)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int dtype = 0; dtype < DTYPES; dtype++) {
            struct h_device *d = h_open(2, kernels);
            for (int norm = 0; norm < 2; norm++) {
                check_forward(d, norm, _i, dtype);
                check_backward(d, norm, _i, dtype);
                if (!h_is_staged(d))
                    check_weights(d, norm, _i, dtype);
            }
            h_close(d);
        }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("norm-sums");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, bits_are_those_of_two_kernels, 0, SHAPES);
    return suite_run_case("norm-sums", t);
}
