/* The words in which the families are written: parameters by table rows, operations, the head that all share. */
#include "internal.h"

#include <math.h>

/* "model.layers.*.mlp.weight", 3 -> "model.layers.3.mlp.weight", less its first part if the files lack it, which the
 * head never has; # -> *, which stands for the expert in the names of files. */
static void name_of_layer(char *out, size_t room, const char *pattern, int64_t layer, int unprefixed)
{
    const char *dot = unprefixed && strncmp(pattern, "lm_head.", 8) != 0 ? strchr(pattern, '.') : NULL;
    const char *head = dot ? dot + 1 : pattern;
    const char *star = strchr(head, '*');
    if (star)
        snprintf(out, room, "%.*s%lld%s", (int)(star - head), head, (long long)layer, star + 1);
    else
        snprintf(out, room, "%s", head);
    if ((star = strchr(out, '#')))
        out[star - out] = '*';
}

void tf_emit_begin(struct tf_emit *e, struct hd_model *model, struct hd_program *program)
{
    const struct tf_shape *shape = &model->shape;
    *e = (struct tf_emit){.model = model, .api = model->host->build, .program = program};
    e->norm = (struct hd_attrs){.struct_size = sizeof e->norm, .eps = shape->norm_eps};
    e->rope = (struct hd_attrs){.struct_size = sizeof e->rope,
                                .sign = 1,
                                .table = model->frequencies,
                                .n_table = (uint64_t)(shape->head_dim / 2)};
    e->attention =
        (struct hd_attrs){.struct_size = sizeof e->attention,
                          .scale = 1 / sqrt((double)shape->head_dim),
                          .window = shape->sliding_window < e->api->extent(program, 's') ? shape->sliding_window : 0};
    e->api->dim(program, 'h', "hidden", shape->hidden);
    e->api->dim(program, 'k', "kv_heads", shape->kv_heads);
    e->api->dim(program, 'g', "heads_per_kv", shape->heads / shape->kv_heads);
    e->api->dim(program, 'd', "head_dim", shape->head_dim);
    e->api->dim(program, 'f', "ffn", shape->ffn);
    e->api->dim(program, 'v', "vocab", shape->vocab);
    if (shape->family == TF_GPT2)
        e->api->dim(program, 'p', "positions", shape->max_seq_len);
    tf_experts_begin(e);
}

void tf_block(struct tf_emit *e, const char *name)
{
    e->api->block(e->program, name);
}

void tf_layer_block(struct tf_emit *e, int64_t layer)
{
    char name[32];
    snprintf(name, sizeof name, "L%lld", (long long)layer);
    e->layer = layer;
    tf_block(e, name);
}

static void fill_init(struct hd_param_desc *desc, enum tf_init init, int64_t layers)
{
    desc->init = init == TF_ZEROS ? HD_INIT_ZEROS : init == TF_ONES ? HD_INIT_ONES : HD_INIT_NORMAL;
    if (init == TF_NORMAL)
        desc->std = 0.02;
    if (init == TF_RESIDUAL) /* GPT-2 paper, 2.3: as many additions to the residual stream as 2 a layer */
        desc->std = 0.02 / sqrt(2.0 * (double)layers);
}

hd_tensor tf_param(struct tf_emit *e, const struct tf_param *row)
{
    char name[128], file[128];
    struct hd_param_desc desc = {.struct_size = sizeof desc,
                                 .name = name,
                                 .dims = row->dims,
                                 .file_name = file,
                                 .file_axes = row->file_axes,
                                 .part = row->part,
                                 .parts = row->parts ? row->parts : 1,
                                 .part_axis = row->part_axis,
                                 .flags = row->flags};
    name_of_layer(name, sizeof name, row->name, e->layer, 0);
    name_of_layer(file, sizeof file, row->file ? row->file : row->name, e->layer, e->model->unprefixed);
    fill_init(&desc, row->init, e->model->shape.layers);
    return e->api->param(e->program, &desc);
}

hd_tensor tf_op(struct tf_emit *e, uint32_t op, const struct hd_attrs *attrs, const char *dims, const hd_tensor *ins,
                uint32_t n_in)
{
    hd_tensor outs[HD_MAX_OUT] = {0};
    return e->api->emit(e->program, op, attrs, ins, n_in, dims, outs);
}

hd_tensor tf_residual(struct tf_emit *e, hd_tensor x)
{
    return e->api->residual(e->program, x);
}

hd_tensor tf_attention(struct tf_emit *e, hd_tensor q, hd_tensor k, hd_tensor v)
{
    hd_tensor positions = e->api->input(e->program, "positions"), ins[] = {q, k, v, positions};
    return tf_op(e, HD_OP_ATTENTION, &e->attention, "bskgd,bskg", ins, positions ? 4 : 3);
}

void tf_head(struct tf_emit *e, hd_tensor x, hd_tensor w)
{
    const struct hd_builder_api *api = e->api;
    struct hd_attrs mean = {.struct_size = sizeof mean, .scale = api->loss_scale(e->program)};
    hd_tensor labels = api->input(e->program, "labels");
    hd_tensor logits = TF_OP(e, HD_OP_EINSUM, NULL, "bsv", x, w);
    hd_tensor sums[HD_MAX_OUT] = {0};
    api->logits(e->program, logits);

    hd_tensor max = api->tokenwise(e->program, TF_OP(e, HD_OP_ROWMAX, NULL, "bs", logits));
    api->emit(e->program, HD_OP_XENT_LOCAL, NULL, (hd_tensor[]){logits, max, labels}, 3, "bs,bs", sums);
    hd_tensor sum = api->tokenwise(e->program, sums[0]);
    hd_tensor correct = api->tokenwise(e->program, sums[1]);
    hd_tensor nll = api->tokenwise(e->program, TF_OP(e, HD_OP_NLL, NULL, "bs", sum, max, correct));
    api->loss(e->program, TF_OP(e, HD_OP_TOTAL, &mean, "", nll));
}
