/* The inverse of param_init.c: parameters into their file tensors. */
#include "service/train/export.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/dtype.h"
#include "core/base/file.h"
#include "core/program/param_file.h"
#include "service/checkpoint/param_init.h"
#include "service/checkpoint/safetensors.h"
#include "service/text/chat.h"

struct file_tensor {
    char *name; /* owned */
    int64_t shape[HD_MAX_DIMS];
    uint32_t ndim, last; /* last: its piece that was found last */
};

struct file_slice { /* a parameter's slice of a file tensor */
    uint32_t param;
    uint32_t before; /* another piece of its file tensor; itself: there is none */
    int64_t index;   /* index among the tensors that the parameter consists of */
};

struct flat_place {
    uint32_t flat, index; /* of its parameters */
};

struct tensors {
    HD__ARRAY(struct file_tensor) files;
    HD__ARRAY(struct file_slice) piece;
    struct flat_place *place; /* of each parameter of the program */
};

static void list_tensors(const struct hd_program *p, struct tensors *all)
{
    json_t *by_name = json_object();
    for (uint32_t i = 0; i < p->params.count; i++)
        for (int64_t n = 0; n < hd__ckpt_file_tensor_count(p, i); n++) {
            struct file_tensor f = {.name = hd__ckpt_file_tensor_name(p, i, n)};
            struct file_slice piece = {.param = i, .before = all->piece.count, .index = n};
            json_t *known = json_object_get(by_name, f.name);
            f.ndim = hd__ckpt_file_tensor_shape(p, i, f.shape);
            f.last = all->piece.count;
            if (known) {
                struct file_tensor *file = &all->files.at[json_integer_value(known)];
                piece.before = file->last;
                file->last = f.last;
                free(f.name);
            } else {
                json_object_set_new(by_name, f.name, json_integer((json_int_t)all->files.count));
                hd__push(&all->files, f);
            }
            hd__push(&all->piece, piece);
        }
    json_decref(by_name);
    all->place = hd__alloc(p->params.count * sizeof *all->place);
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++)
            all->place[p->flats.at[f].params[k]] = (struct flat_place){f, k};
}

/* Copies one parameter, or one of the tensors that it consists of, to its rows of the file tensor. Both row-major. */
static void copy_to_file_tensor(const struct hd_program *p, const struct file_slice *piece, uint32_t dtype,
                                const char *from, float *to)
{
    int64_t size = (int64_t)hd_dtype_size(dtype);
    struct hd__file_part part = hd__param_file_part(p, &p->params.at[piece->param]);
    const struct hd__tensor *t = hd__tensor_const(p, p->params.at[piece->param].tensor);
    int64_t count = hd__global_numel(p, t) / hd__ckpt_file_tensor_count(p, piece->param);
    from += piece->index * count * size;
    for (int64_t row = 0; row < count / part.own; row++)
        hd__to_f32(dtype, from + row * part.own * size, to + row * part.width + part.skip, (uint64_t)part.own);
}

static const char *master_weights(struct hd__train_session *s, struct flat_place place, uint32_t *dtype)
{
    const struct hd_program *p = hd__exec_program(s->exec);
    const struct hd__flat *flat = &p->flats.at[place.flat];
    hd_tensor master = flat->tensor[HD__FLAT_MASTER];
    *dtype = hd__tensor_const(p, master)->dtype;
    return (const char *)hd__exec_host_data(s->exec, master) +
           flat->offset[place.index] * (int64_t)hd_dtype_size(*dtype);
}

/* ---- files. Each is written under a temporary name and renamed when it is complete. */

struct export
{
    struct hd__train_session *session; /* NULL: the list alone */
    const struct hd__train_export_config *config;
    uint32_t dtype;
    HD__ARRAY(char *) names;   /* in the folder */
    HD__ARRAY(char *) sources; /* what each is a copy of, or was made of; NULL: it is made */
    uint32_t written;
};

static int32_t fail_io(const char *path, struct hd_error *err)
{
    return hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
}

/* Rounds to nearest even. HD_E_INVALID where a finite value has no finite one of this dtype. */
static int32_t convert(const struct export *e, const struct hd__ckpt_st_item *item, float *values, void *out,
                       struct hd_error *err)
{
    uint64_t count = item->bytes / hd_dtype_size(item->dtype);
    float back;
    hd__from_f32(item->dtype, values, out, count);
    for (uint64_t i = 0; i < count; i++) {
        hd__to_f32(item->dtype, (char *)out + i * hd_dtype_size(item->dtype), &back, 1);
        if (isinf(back) && isfinite(values[i]))
            return hd_fail(err, HD_E_INVALID, "%s has %g, which is too large for %s: export with another --dtype",
                           item->name, values[i], hd_dtype_name(e->dtype));
    }
    return HD_OK;
}

static int32_t write_tensor(const struct export *e, const struct tensors *all, const struct hd__ckpt_st_item *item,
                            uint32_t number, FILE *file, const char *path, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(e->session->exec);
    float *values = hd__alloc(item->bytes / hd_dtype_size(item->dtype) * sizeof *values);
    void *out = item->dtype == HD_F32 ? values : hd__alloc(item->bytes);
    int32_t rc = HD_OK;
    for (uint32_t k = all->files.at[number].last, more = 1; more; k = all->piece.at[k].before) {
        uint32_t dtype = HD_F32;
        const char *weights = master_weights(e->session, all->place[all->piece.at[k].param], &dtype);
        copy_to_file_tensor(p, &all->piece.at[k], dtype, weights, values);
        more = all->piece.at[k].before != k;
    }
    if (out != values)
        rc = convert(e, item, values, out, err);
    if (!rc && (fseeko(file, (off_t)item->offset, SEEK_SET) || fwrite(out, 1, item->bytes, file) != item->bytes))
        rc = fail_io(path, err);
    if (out != values)
        free(out);
    free(values);
    return rc;
}

static int32_t write_weights(const struct export *e, const char *source, FILE *file, const char *path,
                             struct hd_error *err)
{
    struct tensors all = {0};
    struct hd__ckpt_st_item *items;
    struct hd__text head = {0};
    uint64_t size = 0;
    int32_t rc;
    (void)source;
    list_tensors(hd__exec_program(e->session->exec), &all);
    items = hd__alloc(all.files.count * sizeof *items);
    for (uint32_t i = 0; i < all.files.count; i++)
        items[i] = (struct hd__ckpt_st_item){.name = all.files.at[i].name,
                                             .dtype = e->dtype,
                                             .ndim = all.files.at[i].ndim,
                                             .shape = all.files.at[i].shape};
    rc = hd__ckpt_st_layout(items, all.files.count, &head, &size, err);
    if (!rc && fwrite(head.at, 1, head.length, file) != head.length)
        rc = fail_io(path, err);
    for (uint32_t i = 0; i < all.files.count && !rc; i++)
        rc = write_tensor(e, &all, &items[i], i, file, path, err);
    hd__text_free(&head);
    for (uint32_t i = 0; i < all.files.count; i++)
        free(all.files.at[i].name);
    hd__free_array(&all.files);
    hd__free_array(&all.piece);
    free(all.place);
    free(items);
    return rc;
}

const char *hd__train_export_differs(const json_t *config, const struct hd_model_info *info, int64_t *says, int64_t *is)
{
    const struct {
        const char *key;
        int64_t is;
    } rows[] = {{"num_hidden_layers", info->layers},
                {"n_layer", info->layers},
                {"n_layers", info->layers},
                {"hidden_size", info->hidden},
                {"n_embd", info->hidden},
                {"d_model", info->hidden},
                {"dim", info->hidden},
                {"vocab_size", info->vocab},
                {"num_attention_heads", info->heads},
                {"n_head", info->heads},
                {"n_heads", info->heads},
                {"num_key_value_heads", info->kv_heads}};
    for (size_t k = 0; k < HD__COUNT(rows); k++) {
        const json_t *value = json_object_get(config, rows[k].key);
        *says = json_integer_value(value);
        *is = rows[k].is;
        if (json_is_integer(value) && *is && *says != *is)
            return rows[k].key;
    }
    return NULL;
}

/* The model's own with all fields of model.from's, and the dtype of the weights beside it. */
static int32_t write_config(const struct export *e, const char *source, FILE *file, const char *path,
                            struct hd_error *err)
{
    const struct hd__compiled *c = e->session->compiled;
    const char *dtype = hd_dtype_name(e->dtype); /* "bf16" is PyTorch's "bfloat16", "fp32" its "float32" */
    char torch_dtype[32];
    const char *text, *key;
    int64_t says, is;
    json_error_t why;
    (void)source;
    snprintf(torch_dtype, sizeof torch_dtype, "%sfloat%s", dtype[0] == 'b' ? "b" : "",
             dtype + strcspn(dtype, "0123456789"));
    int32_t rc = c->model_choice.component->ops.model.config_json(c->model, &text, err);
    if (rc)
        return rc;
    json_t *root = json_loads(text, 0, &why);
    if (!json_is_object(root))
        rc = hd_fail(err, HD_E_INTERNAL, "model-%s: its config.json is no JSON object: %s",
                     c->model_choice.component->name, root ? "another type" : why.text);
    if (!rc && (key = hd__train_export_differs(root, &c->info, &says, &is)))
        hd__log(HD_LOG_WARN, NULL, "%s: model-%s writes %s %lld, and its `info` says %lld: correct its config_json",
                path, c->model_choice.component->name, key, (long long)says, (long long)is);
    says = json_integer_value(json_object_get(root, "n_positions")); /* GPT-2's, which are learned */
    if (!rc && e->config->positions && says > e->config->positions)
        hd__log(HD_LOG_WARN, NULL,
                "%s: n_positions is %lld, and data.seq_len was %lld when the checkpoint was saved: positions behind "
                "that may never have been trained",
                path, (long long)says, (long long)e->config->positions);
    if (!rc)
        json_object_set_new(root, "torch_dtype", json_string(torch_dtype));
    if (!rc && json_dumpf(root, file, JSON_INDENT(2)))
        rc = fail_io(path, err);
    json_decref(root);
    return rc;
}

static void add_end(json_t *ends, json_int_t id)
{
    for (size_t i = 0; i < json_array_size(ends); i++)
        if (json_integer_value(json_array_get(ends, i)) == id)
            return;
    json_array_append_new(ends, json_integer(id));
}

/* transformers' generate() ends at these tokens: those of the source and the trained one, or all that are known. */
static int32_t write_generation(const struct export *e, const char *source, FILE *file, const char *path,
                                struct hd_error *err)
{
    json_t *root = source ? json_load_file(source, 0, NULL) : json_object();
    json_t *theirs = json_object_get(root, "eos_token_id"), *ends = json_array();
    if (json_is_integer(theirs))
        json_array_append(ends, theirs);
    json_array_extend(ends, theirs);
    int none = !json_array_size(ends);
    for (size_t i = 0; i < e->config->n_ends && none; i++)
        add_end(ends, e->config->ends[i]);
    if (!none)
        add_end(ends, e->config->stop);
    int32_t rc = json_object_set_new(root, "eos_token_id", ends)
                     ? hd_fail(err, HD_E_INVALID, "%s: is no JSON object", source)
                 : json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ? fail_io(path, err)
                                                                                    : HD_OK;
    json_decref(root);
    return rc;
}

static int32_t copy_file(const struct export *e, const char *source, FILE *file, const char *path, struct hd_error *err)
{
    static char block[1 << 16];
    FILE *from = hd__open_regular(source, "file to copy", err);
    int32_t rc = from ? HD_OK : err->code;
    (void)e;
    for (size_t n; !rc && (n = fread(block, 1, sizeof block, from));)
        if (fwrite(block, 1, n, file) != n)
            rc = fail_io(path, err);
    if (!rc && ferror(from))
        rc = fail_io(source, err);
    if (from)
        fclose(from);
    return rc;
}

static int32_t write_file(const struct export *e, uint32_t number, struct hd_error *err)
{
    const char *name = e->names.at[number], *source = e->sources.at[number];
    char *path = hd__format("%s/%s", e->config->folder, name), *part = hd__format("%s.part", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    int made = !source || (e->config->stop >= 0 && !strcmp(name, "generation_config.json"));
    int32_t rc = !file         ? fail_io(part, err)
                 : !made       ? copy_file(e, source, file, path, err)
                 : number == 0 ? write_weights(e, source, file, path, err)
                 : number == 1 ? write_config(e, source, file, path, err)
                               : write_generation(e, source, file, path, err);
    if (file && fclose(file) && !rc)
        rc = fail_io(path, err);
    if (!rc && rename(part, path))
        rc = fail_io(path, err);
    if (rc && file)
        unlink(part);
    free(part);
    free(path);
    return rc;
}

/* ---- the list of files */

static void add_name(struct export *e, const char *name, char *source)
{
    for (uint32_t i = 0; i < e->names.count; i++)
        if (!strcmp(e->names.at[i], name)) {
            free(source);
            return;
        }
    hd__push(&e->names, hd__strdup(name));
    hd__push(&e->sources, source);
}

static int is_copied(const char *name)
{
    static const char *const names[] = {"tokenizer.json",    "tokenizer.model",         "tokenizer_config.json",
                                        "added_tokens.json", "special_tokens_map.json", "vocab.json",
                                        "merges.txt",        "generation_config.json",  "chat_template.jinja"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < HD__COUNT(names); i++)
        if (!strcmp(names[i], name))
            return 1;
    return dot && dot != name && !strcmp(dot, ".tiktoken");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_source(struct export *e, const char *source)
{
    struct stat st;
    const char *slash = strrchr(source, '/');
    HD__ARRAY(char *) found = {0};
    const char *name = slash ? slash + 1 : source;
    if (!stat(source, &st) && S_ISREG(st.st_mode)) /* by the name that is looked for */
        add_name(e,
                 hd__ends_with(name, ".json")    ? "tokenizer.json"
                 : hd__ends_with(name, ".model") ? "tokenizer.model"
                                                 : name,
                 hd__strdup(source));
    DIR *dir = opendir(source);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (is_copied(entry->d_name))
            hd__push(&found, hd__strdup(entry->d_name));
    if (dir)
        closedir(dir);
    hd__sort(&found, by_name);
    for (uint32_t i = 0; i < found.count; i++) {
        add_name(e, found.at[i], hd__format("%s/%s", source, found.at[i]));
        free(found.at[i]);
    }
    hd__free_array(&found);
}

static struct export list_files(struct hd__train_session *session, const struct hd__train_export_config *config)
{
    struct export e = {.session = session, .config = config};
    add_name(&e, "model.safetensors", NULL);
    add_name(&e, "config.json", NULL);
    for (size_t i = 0; i < HD__COUNT(config->sources); i++)
        if (config->sources[i])
            add_source(&e, config->sources[i]);
    if (config->n_ends)
        add_name(&e, "generation_config.json", NULL);
    return e;
}

static void free_files(struct export *e)
{
    for (uint32_t i = 0; i < e->names.count; i++) {
        free(e->names.at[i]);
        free(e->sources.at[i]);
    }
    hd__free_array(&e->names);
    hd__free_array(&e->sources);
}

/* ---- the chat template that goes with the weights */

/* transformers' GPT2Config, say, has 50256 whatever the vocabulary. */
static void warn_ends(const struct export *e)
{
    const int64_t vocab = e->session->compiled->info.vocab;
    char *path = hd__format("%s/generation_config.json", e->config->folder);
    json_t *root = json_load_file(path, 0, NULL), *ends = json_array(), *is = json_object_get(root, "eos_token_id");
    if (json_array_extend(ends, is))
        json_array_append(ends, is);
    for (size_t i = 0; i < json_array_size(ends); i++)
        if (json_integer_value(json_array_get(ends, i)) >= vocab)
            hd__log(
                HD_LOG_WARN, NULL,
                "%s: eos_token_id has %lld, and the vocabulary is of %lld: no text ends there: write the tokenizer's",
                path, (long long)json_integer_value(json_array_get(ends, i)), (long long)vocab);
    json_decref(ends);
    json_decref(root);
    free(path);
}

static void warn_chat_template(const struct export *e)
{
    for (uint32_t i = 0; i < e->names.count; i++) {
        const char *name = e->names.at[i], *source = e->sources.at[i];
        if (!e->config->turn ||
            (strcmp(name, "tokenizer_config.json") != 0 && strcmp(name, "chat_template.jinja") != 0))
            continue;
        if (hd__chat_file_lacks(source, e->config->turn))
            hd__log(HD_LOG_WARN, NULL,
                    "%s/%s: its chat_template, like that of %s, lacks %s, which begins each turn in data.train: "
                    "replace it with the template that the model was trained with",
                    e->config->folder, name, source, e->config->turn);
    }
}

/* ---- an export */

static int32_t check_absent(const struct hd__train_export_config *config, const char *name, struct hd_error *err)
{
    char *path = hd__format("%s/%s", config->folder, name);
    struct stat st;
    int32_t rc = lstat(path, &st) ? HD_OK
                                  : hd_fail(err, HD_E_INVALID,
                                            "--to %s: %s is there, and an export overwrites nothing: name another "
                                            "folder, or move this one away",
                                            config->folder, path);
    free(path);
    return rc;
}

int32_t hd__train_export_check(const struct hd__train_export_config *config, struct hd_error *err)
{
    struct export e = list_files(NULL, config);
    char *path = hd__format("%s/%s", config->folder, e.names.at[0]);
    int why = *config->folder ? hd__can_write(path) : ENOENT;
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < e.names.count && !rc; i++)
        rc = check_absent(config, e.names.at[i], err);
    if (!rc) /* of a model in several files, which some would read instead of ours */
        rc = check_absent(config, "model.safetensors.index.json", err);
    if (!rc && why)
        rc = hd_fail(err, HD_E_INVALID, "--to %s: %s", config->folder, strerror(why));
    free(path);
    free_files(&e);
    return rc;
}

/* The dtype that all weights of model.from have; fp32 where they differ, or there are none. */
static uint32_t dtype_of_source(const struct hd__compiled *c)
{
    struct hd__ckpt_st *st;
    struct hd_error err = HD_ERROR_INIT;
    if (!c->info.weights || hd__ckpt_st_open(c->info.weights, &st, &err))
        return HD_F32;
    uint32_t dtype = hd__ckpt_st_count(st) ? hd__ckpt_st_tensor_at(st, 0)->dtype : HD_F32;
    for (uint32_t i = 1; i < hd__ckpt_st_count(st); i++)
        dtype = hd__ckpt_st_tensor_at(st, i)->dtype == dtype ? dtype : HD_F32;
    hd__ckpt_st_close(st);
    return hd__is_float(dtype) && hd_dtype_size(dtype) == 2 ? dtype : HD_F32;
}

static void name_files(const struct export *e, struct hd__text *written)
{
    for (uint32_t i = 0; i < e->names.count; i++)
        hd__text_add(written, "%s%s", !i ? "" : i + 1 < e->names.count ? ", " : " and ", e->names.at[i]);
    hd__text_add(written, ", weights in %s", hd_dtype_name(e->dtype));
}

static void remove_files(const struct export *e)
{
    for (uint32_t i = 0; i < e->written; i++) {
        char *path = hd__format("%s/%s", e->config->folder, e->names.at[i]);
        unlink(path);
        free(path);
    }
}

int32_t hd__train_export(struct hd__train_session *s, const struct hd__train_export_config *config,
                         struct hd__text *written, struct hd_error *err)
{
    const struct hd_program *p = hd__exec_program(s->exec);
    char *path = hd__format("%s/", config->folder);
    int why = hd__make_folders(path);
    free(path);
    if (p->mesh.ranks != 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "export wants one rank");
    if (!s->compiled->model_choice.component->ops.model.config_json)
        return hd_fail(err, HD_E_UNSUPPORTED, "model-%s has no Hugging Face format",
                       s->compiled->model_choice.component->name);
    if (why)
        return hd_fail(err, HD_E_IO, "%s: %s", config->folder, strerror(why));
    struct export e = list_files(s, config);
    e.dtype = config->dtype ? config->dtype : dtype_of_source(s->compiled);
    int32_t rc = hd__exec_copy_tensors(s->exec, HD__D2H, NULL, 0, err);
    for (uint32_t i = 0; i < e.names.count && !rc; i++)
        if (!(rc = write_file(&e, i, err)))
            e.written++;
    if (rc)
        remove_files(&e);
    else
        name_files(&e, written), warn_chat_template(&e), warn_ends(&e);
    free_files(&e);
    return rc;
}
