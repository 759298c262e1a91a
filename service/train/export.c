/* The inverse of param_init.c: parameters into their file tensors. */
#include "service/train/export.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/program/param_file.h"
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
    struct hd__file_part part = hd__param_file_part(p, param);
    struct file_tensor f = {0};
    for (int32_t i = 0; i < t->ndim; i++) {
        int32_t axis = hd__param_file_axis(d, i);
        if (axis < 0)
            continue;
        while ((int32_t)f.ndim <= axis)
            f.shape[f.ndim++] = 1;
        f.shape[axis] *= p->dims.at[t->dim[i]].extent;
    }
    if (part.axis >= 0)
        f.shape[part.axis] = f.shape[part.axis] / part.span * part.parts;
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

/* Copies one parameter, or one of the tensors that it consists of, to its rows of the file tensor. Both row-major. */
static void copy_to_file_tensor(const struct hd_program *p, const struct file_slice *piece, const float *from,
                                float *to)
{
    struct hd__file_part part = hd__param_file_part(p, &p->params.at[piece->param]);
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[piece->param].tensor);
    int64_t count = hd__global_numel(p, t) / hd__ckpt_file_tensor_count(p, piece->param);
    from += piece->index * count;
    for (int64_t row = 0; row < count / part.own; row++)
        memcpy(to + row * part.width + part.skip, from + row * part.own, (size_t)part.own * sizeof *to);
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
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
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
    rc = ops->config_json(s->compiled->model, &text, err);
    if (!rc && fputs(text, file) < 0)
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    return rc;
}

/* Did an export write this file of weights? */
static int is_export(const char *path)
{
    char begin[8 + sizeof HD__CKPT_ST_BEGINS] = "";
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC),
        ours = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && read(fd, begin, sizeof begin - 1) > 8 &&
               !strcmp(begin + 8, HD__CKPT_ST_BEGINS);
    if (fd >= 0)
        close(fd);
    return ours;
}

int32_t hd__train_export_check(const char *folder, struct hd_error *err)
{
    /* The index is of a model in several files, which some would read instead of ours. */
    static const char *const names[] = {"model.safetensors", "config.json", "model.safetensors.index.json"};
    char *path = hd__format("%s/%s", folder, names[0]);
    int ours = is_export(path), why = *folder ? hd__can_write(path) : ENOENT;
    int32_t rc = why ? hd_fail(err, HD_E_INVALID, "--to %s: %s", folder, strerror(why)) : HD_OK;
    for (size_t i = 0; i < HD__COUNT(names) && !rc; i++) {
        struct stat st;
        free(path);
        path = hd__format("%s/%s", folder, names[i]);
        if (!lstat(path, &st) && (!ours || i == 2))
            rc = hd_fail(err, HD_E_INVALID,
                         "--to %s: %s is there, and `heddle ckpt export` did not write it: name another folder, or "
                         "move this one away",
                         folder, path);
    }
    free(path);
    return rc;
}

int32_t hd__train_export(struct hd__train_session *s, const char *folder, struct hd_error *err)
{
    const struct hd_program *p = hd__exec_program(s->exec);
    char *path = hd__format("%s/", folder);
    int why = hd__make_folders(path);
    int32_t rc;
    free(path);
    if (p->precision.master != HD_F32 || p->mesh.ranks != 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "export wants one rank and fp32 master weights");
    if (!s->compiled->model_choice.component->ops.model.config_json)
        return hd_fail(err, HD_E_UNSUPPORTED, "model-%s has no Hugging Face format",
                       s->compiled->model_choice.component->name);
    if (why)
        return hd_fail(err, HD_E_IO, "%s: %s", folder, strerror(why));
    rc = hd__exec_copy_tensors(s->exec, HD__D2H, NULL, 0, err);
    if (!rc) /* first: hd__train_export_check looks at them after an export that came to nothing */
        rc = write_file(folder, "model.safetensors", write_weights, s, err);
    return rc ? rc : write_file(folder, "config.json", write_config, s, err);
}
