/* Numbers outside what anyone uses: a sign that is missing, a ratio for a width, percent for a share. The ranges are
 * wide: of the defaults and recipes of GPT-3, Llama, DeepSeek, DiLoCo (arXiv 2311.08105), Lion (2302.06675), Muon. */
#include <float.h>
#include <fnmatch.h>
#include <stdlib.h>

#include "cli/warnings/warnings.h"
#include "service/train/resume_diff.h"

#define ZERO "strategies.@(zero|ddp|fsdp)"
#define ADAM "each weight moves by about as much in a step: 1e-5 to 1e-2 are usual"
#define NEVER "so there is hardly ever an alarm: it is a share, as 0.1 for 10%"

static const struct usual {
    const char *key, *use; /* patterns of fnmatch; of the section's plugin, NULL: any */
    double least, most;    /* 0 has a meaning of its own */
    const char *why;
} rows[] = {
    {"optimizer.lr", "@(adamw|adamw8)", 1e-8, 0.05, ADAM},
    {"optimizer.adamw_lr", NULL, 1e-8, 0.1, ADAM},
    {"optimizer.lr", "lion", 1e-8, 0.03, "each weight moves by it in each step: 1e-5 to 1e-3 are usual"},
    {"optimizer.lr", "@(sgd|muon)", 1e-8, 10, "1e-4 to 1 are usual"},
    {"optimizer.@(|adamw_)eps", "@(adamw|adamw8|muon)", 1e-20, 1e-2,
     "1e-10 to 1e-5 are usual, and a large one damps all steps"},
    {"optimizer.weight_decay", "!(lion)", 1e-8, 2, "0.01 to 0.3 are usual"},
    {"optimizer.weight_decay", "lion", 1e-8, 30, "0.1 to 10 are usual"},
    {"optimizer.momentum", NULL, 1e-3, 0.9999, "0.8 to 0.99 are usual, and 1 forgets no gradient"},
    {"optimizer.clip", NULL, 1e-3, 1e4, "0.1 to 10 are usual, and 0 is no clipping"},
    {"optimizer.ns_steps", NULL, 3, 12, "5 are usual"},
    {"model.rope_theta", NULL, 100, 1e9, "it is the base of the frequencies, not a scale: 1e4 to 1e6 are usual"},
    {"model.@(|rms_|layer_)norm_eps?(ilon)", NULL, 1e-15, 1e-3,
     "1e-6 to 1e-5 are usual, and a large one keeps norms from normalizing"},
    {"model.router_aux_loss_coef", NULL, 1e-8, 1, "1e-4 to 0.02 are usual, and a large one trains the router alone"},
    {"model.router_z_loss_coef", NULL, 1e-8, 1, "1e-4 to 1e-2 are usual"},
    {"model.sliding_window", NULL, 2, DBL_MAX,
     "a token attends to itself alone, and learns nothing of those before it: say 2 or more, or 0 for all"},
    {"strategies.localsgd.outer_lr", NULL, 0.05, 2,
     "replicas keep about such a share of what they learned: 0.4 to 1 are usual"},
    {ZERO ".prefetch_size", NULL, 1000, DBL_MAX, "these are parameters: to count blocks, set prefetch"},
    {ZERO ".max_live", NULL, 1000, DBL_MAX, "these are parameters: to count gathers, set max_inflight"},
    {"data.seq_len", NULL, 2, DBL_MAX, "a token alone has nothing before it to learn from"},
    {"watch.loss_spike", NULL, 2, 1e3, "these are standard deviations: 4 to 10 are usual"},
    {"watch.grad_norm", NULL, 1.5, 1e3, "these are times the median: 3 to 20 are usual"},
    {"watch.@(straggler|memory)", NULL, 0, 4, NEVER},
    {"watch.@(data_wait|exposed_comm|throughput)", NULL, 0, 0.99, NEVER},
    {"watch.utilisation", NULL, 0, 0.99, "ranks never compute all of the time: 0.3 to 0.9 are usual"},
};

static int is_unusual(const struct usual *row, const char *path, const char *use, double number)
{
    return (number < row->least || number > row->most) && !fnmatch(row->key, path, FNM_EXTMATCH) &&
           (!row->use || !fnmatch(row->use, use, FNM_EXTMATCH));
}

void hd__warn_unusual(struct hd__job *job, struct hd__text *out)
{
    for (uint32_t i = 0; i < job->values.count; i++) {
        struct hd__job_value *value = &job->values.at[i];
        double number = json_is_string(value->json) ? strtod(value->text, NULL) : json_number_value(value->json);
        if (!strcmp(value->origin, "default") || number <= 0)
            continue;
        for (size_t k = 0; k < HD__COUNT(rows); k++)
            if (is_unusual(&rows[k], value->path, value->owner ? value->owner->use : "", number)) {
                hd__text_add(out, "%s: warning: %s is %s: %s\n", value->origin,
                             value->written ? value->written : value->path, value->text, rows[k].why);
                value->plain = NULL; /* said */
            }
    }
}

void hd__warn_unusual_config(const struct hd__compiled *c, struct hd__text *out)
{
    const struct hd__job_value *from = hd__job_value_get(c->job, "model.from");
    json_t *config = from && from->text && *from->text ? hd__train_model_config(c) : NULL;
    json_object_update_missing(config, json_object_get(config, "rope_parameters"));
    if (json_object_get(json_object_get(config, "auto_map"), "AutoModelForCausalLM"))
        hd__text_add(out,
                     "%s: warning: model.from: its config.json has auto_map, by which transformers runs code of its "
                     "folder: heddle does not, and computes it as any model of its model_type\n",
                     from->origin);
    for (void *at = json_object_iter(config); at; at = json_object_iter_next(config, at)) {
        const char *path = hd__arena_format(&c->job->arena, "model.%s", json_object_iter_key(at));
        double number = json_number_value(json_object_iter_value(at));
        for (size_t k = 0; k < HD__COUNT(rows); k++)
            if (number > 0 && is_unusual(&rows[k], path, "", number))
                hd__text_add(out, "%s: warning: model.from: %s is %g in its config.json: %s\n", from->origin,
                             json_object_iter_key(at), number, rows[k].why);
    }
    json_decref(config);
}
