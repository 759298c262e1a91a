/* The inverse of param_init.c: parameters into their file tensors. */
#include "service/train/export.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/checkpoint/param_init.h"
#include "service/checkpoint/safetensors.h"

struct file_tensor {
    char *name; /* owned */
    int64_t shape[HD_MAX_DIMS];
    uint32_t ndim;
};

struct file_slice { /* a parameter's slice of a file tensor */
    uint32_t file, param;
    int64_t index; /* index among the tensors that the parameter consists of */
};

struct tensors {
    HD__ARRAY(struct file_tensor) files;
    HD__ARRAY(struct file_slice) piece;
};

/* Extents of the file's axes: this parameter's dims merged, times its parts. */
static struct file_tensor shape_in_file(const struct hd_program *p, const struct hd__param *param)
{
    const struct hd_param_desc *d = &param->desc;
    const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
    struct file_tensor f = {0};
    for (int32_t i = 0; i < t->ndim; i++) {
        uint32_t axis = d->file_axes ? (uint32_t)(d->file_axes[i] - '0') : (uint32_t)i;
        if (d->file_axes && d->file_axes[i] == '*')
            continue;
        while (f.ndim <= axis)
            f.shape[f.ndim++] = 1;
        f.shape[axis] *= p->dims.at[t->dim[i]].extent;
    }
    if (d->parts > 1)
        f.shape[d->part_axis] *= d->parts;
    return f;
}

static void list_tensors(const struct hd_program *p, struct tensors *all)
{
    for (uint32_t i = 0; i < p->params.count; i++)
        for (int64_t n = 0; n < hd__ckpt_file_tensor_count(p, i); n++) {
            struct file_tensor f = shape_in_file(p, &p->params.at[i]);
            struct file_slice piece = {.param = i, .index = n};
            f.name = hd__ckpt_file_tensor_name(p, i, n);
            while (piece.file < all->files.count && strcmp(all->files.at[piece.file].name, f.name))
                piece.file++;
            if (piece.file == all->files.count)
                hd__push(&all->files, f);
            else
                free(f.name);
            hd__push(&all->piece, piece);
        }
}

/* Copies one parameter, or one of the tensors that it consists of, to its rows of the file tensor. Both row-major; a
 * part is `own` of every `width` elements. */
static void copy_to_file_tensor(const struct hd_program *p, const struct file_slice *piece, const float *from,
                                float *to)
{
    const struct hd_param_desc *d = &p->params.at[piece->param].desc;
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[piece->param].tensor);
    int64_t count = hd__global_numel(p, t) / hd__ckpt_file_tensor_count(p, piece->param), own = count;
    uint32_t parts = d->parts > 1 ? d->parts : 1;
    from += piece->index * count;
    if (parts > 1) {
        own = 1;
        for (int32_t i = 0; i < t->ndim; i++)
            if (d->file_axes[i] != '*' && (uint32_t)(d->file_axes[i] - '0') >= d->part_axis)
                own *= p->dims.at[t->dim[i]].extent;
    }
    for (int64_t row = 0; row < count / own; row++)
        memcpy(to + row * own * parts + (int64_t)d->part * own, from + row * own, (size_t)own * sizeof *to);
}

static const float *master_weights(struct hd__train_session *s, uint32_t param)
{
    const struct hd_program *p = hd__exec_program(s->exec);
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++)
            if (p->flats.at[f].params[k] == param)
                return (const float *)hd__exec_host_data(s->exec, p->flats.at[f].tensor[HD__FLAT_MASTER]) +
                       p->flats.at[f].offset[k];
    return NULL;
}

static int32_t write_weights(struct hd__train_session *s, FILE *file, const char *path, struct hd_error *err)
{
    struct tensors all = {0};
    struct hd__ckpt_st_item *items;
    struct hd__text head = {0};
    uint64_t size = 0;
    int32_t rc;
    list_tensors(hd__exec_program(s->exec), &all);
    items = hd__alloc(all.files.count * sizeof *items);
    for (uint32_t i = 0; i < all.files.count; i++)
        items[i] = (struct hd__ckpt_st_item){.name = all.files.at[i].name,
                                             .dtype = HD_F32,
                                             .ndim = all.files.at[i].ndim,
                                             .shape = all.files.at[i].shape};
    rc = hd__ckpt_st_layout(items, all.files.count, &head, &size, err);
    if (!rc && fwrite(head.at, 1, head.length, file) != head.length)
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    for (uint32_t i = 0; i < all.files.count && !rc; i++) {
        float *values = hd__alloc(items[i].bytes);
        for (uint32_t k = 0; k < all.piece.count; k++)
            if (all.piece.at[k].file == i)
                copy_to_file_tensor(hd__exec_program(s->exec), &all.piece.at[k],
                                    master_weights(s, all.piece.at[k].param), values);
        if (fseeko(file, (off_t)items[i].offset, SEEK_SET) || fwrite(values, 1, items[i].bytes, file) != items[i].bytes)
            rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
        free(values);
    }
    hd__text_free(&head);
    for (uint32_t i = 0; i < all.files.count; i++)
        free(all.files.at[i].name);
    hd__free_array(&all.files);
    hd__free_array(&all.piece);
    free(items);
    return rc;
}

/* Written under a temporary name and renamed: an existing file stays until the new one is complete. */
static int32_t write_file(const char *folder, const char *name,
                          int32_t (*write)(struct hd__train_session *, FILE *, const char *, struct hd_error *),
                          struct hd__train_session *s, struct hd_error *err)
{
    char *path = hd__format("%s/%s", folder, name), *part = hd__format("%s.part", path);
    FILE *file = fopen(part, "w");
    int32_t rc = file ? write(s, file, path, err) : hd_fail(err, HD_E_IO, "%s: %s", part, strerror(errno));
    if (file && fclose(file) && !rc)
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    if (!rc && rename(part, path))
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    if (rc && file)
        unlink(part);
    free(part);
    free(path);
    return rc;
}

static int32_t write_config(struct hd__train_session *s, FILE *file, const char *path, struct hd_error *err)
{
    const struct hd_model_ops *ops = &s->compiled->model_choice.component->ops.model;
    const char *text;
    int32_t rc;
    if (!ops->config_json)
        return hd_fail(err, HD_E_UNSUPPORTED, "model-%s has no Hugging Face format",
                       s->compiled->model_choice.component->name);
    rc = ops->config_json(s->compiled->model, &text, err);
    if (!rc && fputs(text, file) < 0)
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    return rc;
}

int32_t hd__train_export(struct hd__train_session *s, const char *folder, struct hd_error *err)
{
    const struct hd_program *p = hd__exec_program(s->exec);
    int32_t rc;
    if (p->precision.master != HD_F32 || p->mesh.ranks != 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "export wants one rank and fp32 master weights");
    if (mkdir(folder, 0777) && errno != EEXIST)
        return hd_fail(err, HD_E_IO, "%s: %s", folder, strerror(errno));
    rc = hd__exec_copy_tensors(s->exec, HD__D2H, NULL, 0, err);
    if (!rc)
        rc = write_file(folder, "config.json", write_config, s, err);
    return rc ? rc : write_file(folder, "model.safetensors", write_weights, s, err);
}
