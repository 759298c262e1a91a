/* The emitted programs: dims (by the mock), order, marks, attributes, sizes of well-known models. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "load.h"
#include "mock.h"
#include "tests/suite.h"

static struct hd_program *build(const void *settings, int64_t seq)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model = model_open(&err, settings);
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = mock_new(2, seq);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s", err.message);
    /* Tables live as long as the model: copy what tests look at before it goes. */
    for (uint32_t i = 0; i < p->n_instrs; i++)
        p->instrs[i].attrs.scale += p->instrs[i].attrs.table ? p->instrs[i].attrs.table[1] : 0;
    model_ops->close(model);
    return p;
}

static void check_sane(const struct hd_program *p)
{
    ck_assert_uint_ne(p->loss, 0);
    ck_assert_uint_ne(p->logits, 0);
    for (uint32_t t = 1; t < p->n_tensors; t++) {
        int last = t == p->loss;
        int lse = p->tensors[t].maker >= 0 && p->instrs[p->tensors[t].maker].op == HD_OP_ATTENTION &&
                  p->instrs[p->tensors[t].maker].out[1] == t;
        ck_assert_msg(last || lse || p->tensors[t].users, "tensor %u (%s) is never used", t, p->tensors[t].dims);
    }
}

/* The published sizes of GPT-2 (124M) and TinyLlama-1.1B, Llama-2-7B, Llama-3.2-1B. */
START_TEST(sizes_of_known_models)
{
    static const struct {
        const char *words[20];
        int64_t parameters;
    } known[] = {
        {{"gpt2", "12", "768", "12", "0", "0", "50257", "auto"}, 124439808},
        {{"gpt2", "48", "1600", "25", "0", "0", "50257", "auto"}, 1557611200},
        {{"llama", "22", "2048", "32", "4", "5632", "32000", "auto"}, 1100048384},
        {{"llama", "32", "4096", "32", "0", "11008", "32000", "auto"}, 6738415616},
        {{"llama", "16", "2048", "32", "8", "8192", "128256", "true"}, 1235814400},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *const *w = known[i].words;
        struct hd_program *p = build(model_settings("family", w[0], "layers", w[1], "hidden", w[2], "heads", w[3],
                                                    "kv_heads", w[4], "ffn", w[5], "vocab", w[6], "tied", w[7], NULL),
                                     64);
        ck_assert_int_eq(mock_parameters(p), known[i].parameters);
        check_sane(p);
        mock_free(p);
    }
}
END_TEST

static struct hd_program *small_llama(const char *tied)
{
    return build(model_settings("family", "llama", "layers", "2", "hidden", "64", "heads", "4", "kv_heads", "2",
                                "vocab", "256", "tied", tied, NULL),
                 16);
}

static struct hd_program *small_gpt2(void)
{
    return build(model_settings("family", "gpt2", "layers", "2", "hidden", "64", "heads", "4", "vocab", "256",
                                "max_seq_len", "32", NULL),
                 16);
}

START_TEST(llama_order)
{
    struct hd_program *p = small_llama("false");
    char text[1024];
    mock_ops(p, "embed", text, sizeof text);
    ck_assert_str_eq(text, "embed");
    mock_ops(p, "L1", text, sizeof text);
    ck_assert_str_eq(text, "rmsnorm einsum einsum einsum rope rope attention einsum add rmsnorm einsum "
                           "einsum swiglu einsum add");
    mock_ops(p, "head", text, sizeof text);
    ck_assert_str_eq(text, "rmsnorm einsum rowmax xent_local nll total");
    ck_assert_int_eq(p->extent['f'], 192); /* 8/3 64 = 170.67, rounded up to a multiple of 64 */
    ck_assert_int_eq(p->extent['g'], 2);
    ck_assert_int_eq(p->extent['d'], 16);
    mock_free(p);
}
END_TEST

START_TEST(gpt2_order)
{
    struct hd_program *p = small_gpt2();
    char text[1024];
    mock_ops(p, "embed", text, sizeof text);
    ck_assert_str_eq(text, "embed position");
    mock_ops(p, "L0", text, sizeof text);
    ck_assert_str_eq(text, "layernorm einsum bias einsum bias einsum bias attention einsum bias add "
                           "layernorm einsum bias gelu einsum bias add");
    mock_ops(p, "head", text, sizeof text);
    ck_assert_str_eq(text, "layernorm einsum rowmax xent_local nll total");
    ck_assert_int_eq(p->extent['f'], 256);
    ck_assert_int_eq(p->extent['g'], 1);
    ck_assert_int_eq(p->extent['p'], 32);
    mock_free(p);
}
END_TEST

/* The residual stream is what embed, position and the adds make, and nothing else; statistics lie like the
 * tokens. */
START_TEST(marks)
{
    struct hd_program *both[] = {small_llama("false"), small_gpt2()};
    for (int m = 0; m < 2; m++) {
        struct hd_program *p = both[m];
        for (uint32_t i = 0; i < p->n_instrs; i++) {
            uint32_t op = p->instrs[i].op;
            int stream = op == HD_OP_EMBED || op == HD_OP_POSITION || op == HD_OP_ADD;
            int tokens = op == HD_OP_ROWMAX || op == HD_OP_XENT_LOCAL || op == HD_OP_NLL;
            for (uint32_t n = 0; n < p->instrs[i].n_out; n++) {
                ck_assert_int_eq(p->tensors[p->instrs[i].out[n]].residual, stream);
                ck_assert_int_eq(p->tensors[p->instrs[i].out[n]].tokenwise, tokens);
            }
        }
        mock_free(p);
    }
}
END_TEST

static const struct mock_instr *first(const struct hd_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instrs[i].op == op)
            return &p->instrs[i];
    ck_abort_msg("no such instruction");
    return NULL;
}

START_TEST(attributes)
{
    struct hd_program *p = build(model_settings("family", "llama", "layers", "1", "hidden", "64", "heads", "4", "vocab",
                                                "256", "rope_theta", "500000", "norm_eps", "1e-6", NULL),
                                 16);
    ck_assert_double_eq_tol(first(p, HD_OP_ATTENTION)->attrs.scale, 0.25, 1e-15);
    ck_assert_double_eq(first(p, HD_OP_RMSNORM)->attrs.eps, 1e-6);
    ck_assert_double_eq(first(p, HD_OP_TOTAL)->attrs.scale, MOCK_LOSS_SCALE);
    /* build() left table[1] in scale: theta^(-2/16) */
    ck_assert_double_eq_tol(first(p, HD_OP_ROPE)->attrs.scale, pow(500000, -0.125), 1e-15);
    ck_assert_uint_eq(first(p, HD_OP_TOTAL)->out[0], p->loss);
    mock_free(p);
}
END_TEST

START_TEST(initial_values)
{
    struct hd_program *p = small_gpt2();
    double residual = 0.02 / sqrt(2.0 * 2);
    ck_assert_double_eq(mock_param(p, "transformer.wte.weight")->std, 0.02);
    ck_assert_double_eq(mock_param(p, "transformer.h.1.attn.c_attn.q.weight")->std, 0.02);
    ck_assert_double_eq(mock_param(p, "transformer.h.1.attn.c_proj.weight")->std, residual);
    ck_assert_double_eq(mock_param(p, "transformer.h.0.mlp.c_proj.weight")->std, residual);
    ck_assert_uint_eq(mock_param(p, "transformer.h.0.ln_1.weight")->init, HD_INIT_ONES);
    ck_assert_uint_eq(mock_param(p, "transformer.h.0.ln_1.bias")->init, HD_INIT_ZEROS);
    ck_assert_uint_eq(mock_param(p, "transformer.h.0.attn.c_attn.k.bias")->init, HD_INIT_ZEROS);
    mock_free(p);
    p = small_llama("false");
    ck_assert_double_eq(mock_param(p, "model.layers.1.self_attn.o_proj.weight")->std, residual);
    ck_assert_double_eq(mock_param(p, "model.layers.1.mlp.down_proj.weight")->std, residual);
    ck_assert_double_eq(mock_param(p, "lm_head.weight")->std, 0.02);
    mock_free(p);
}
END_TEST

START_TEST(tied_head_has_no_tensor_of_its_own)
{
    struct hd_program *p = small_llama("true");
    const struct mock_param *embedding = mock_param(p, "model.embed_tokens.weight");
    for (uint32_t i = 0; i < p->n_params; i++)
        ck_assert_str_ne(p->params[i].name, "lm_head.weight");
    ck_assert_uint_eq(p->instrs[p->tensors[p->logits].maker].in[1], embedding->tensor);
    ck_assert_str_eq(embedding->block, "embed");
    mock_free(p);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("program");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_test(tests, sizes_of_known_models);
    tcase_add_test(tests, llama_order);
    tcase_add_test(tests, gpt2_order);
    tcase_add_test(tests, marks);
    tcase_add_test(tests, attributes);
    tcase_add_test(tests, initial_values);
    tcase_add_test(tests, tied_head_has_no_tensor_of_its_own);
    return suite_run_case("model_program", tests);
}
