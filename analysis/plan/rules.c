/* The field's rules of thumb beside the fastest plans: where a search disagrees, it says what the rule would cost. */
#include "analysis/plan/search.h"

struct rule {
    const char *words, *source;
    /* -1: it says nothing about such a plan */
    int (*is_followed)(const struct hd__search *s, const struct hd__candidate *c);
};

static int keeps_tp_inside(const struct hd__search *s, const struct hd__candidate *c)
{
    return c->tp > 1 ? c->tp <= s->inside : -1;
}

static int feeds_pipeline(const struct hd__search *s, const struct hd__candidate *c)
{
    return c->pp > 1 ? hd__candidate_micros(c, s->job.batch) >= 4 * c->pp : -1;
}

static int cuts_context(const struct hd__search *s, const struct hd__candidate *c)
{
    return s->job.seq_len >= 8192 ? c->cp > 1 : -1;
}

/* Megatron Bridge's starting points for dense models, by parameters: from the row of the first that is larger. */
static const struct {
    double parameters;
    int32_t tp[2], pp[2]; /* least, most */
    const char *words;
} sizes[] = {
    {1e9, {1, 1}, {1, 1}, "below 1 G parameters by dp alone"},
    {10e9, {2, 4}, {1, 1}, "1 to 10 G parameters by tp 2 to 4, and dp"},
    {70e9, {4, 8}, {2, 4}, "10 to 70 G parameters by tp 4 to 8, pp 2 to 4, and dp"},
    {175e9, {8, 8}, {4, 8}, "70 to 175 G parameters by tp 8, pp 4 to 8, and dp"},
    {500e9, {8, 8}, {8, 16}, "175 to 500 G parameters by tp 8, pp 8 to 16, and dp"},
};

static size_t size_of(const struct hd__search *s)
{
    size_t row = 0;
    while (row < HD__COUNT(sizes) && s->job.parameters >= sizes[row].parameters)
        row++;
    return row;
}

static int is_cut_as_its_size(const struct hd__search *s, const struct hd__candidate *c)
{
    size_t row = size_of(s);
    return row == HD__COUNT(sizes) ? -1
                                   : (c->tp >= sizes[row].tp[0] && c->tp <= sizes[row].tp[1] &&
                                      c->pp >= sizes[row].pp[0] && c->pp <= sizes[row].pp[1]);
}

static const struct rule rules[] = {
    {"tp within a machine", "Narayanan et al., arXiv 2104.04473", keeps_tp_inside},
    {"4 micro-batches or more a pipeline stage", "Huang et al., arXiv 1811.06965", feeds_pipeline},
    {"contexts of 8k tokens and more cut by cp", "Megatron Core's parallelism guide", cuts_context},
    {NULL, "Megatron Bridge's table of sizes", is_cut_as_its_size}, /* with the words of its size */
};

/* How much longer than the fastest the first plan takes that is not against the rule; below 0: all of the best are. */
static double cost_of(const struct hd__search *s, const struct rule *rule)
{
    for (uint32_t k = 0; k < s->n_best; k++)
        if (rule->is_followed(s, &s->best[k].of))
            return s->best[k].plan.seconds / s->best[0].plan.seconds - 1;
    return -1;
}

json_t *hd__search_rules(const struct hd__search *s, struct hd__text *out)
{
    json_t *rows = json_array();
    size_t size = size_of(s);
    for (size_t r = 0; r < HD__COUNT(rules); r++) {
        const char *words = rules[r].words ? rules[r].words : sizes[HD__MIN(size, HD__COUNT(sizes) - 1)].words;
        double cost = cost_of(s, &rules[r]);
        if (!s->n_best || rules[r].is_followed(s, &s->best[0].of) < 0)
            continue;
        hd__text_add(out, "rule of thumb: %s (%s): ", words, rules[r].source);
        if (cost > 0)
            hd__text_add(out, "the fastest that follows it takes %.1f %% longer\n", 100 * cost);
        else
            hd__text_add(out, "followed by %s\n", cost < 0 ? "none of these" : "the fastest");
        json_array_append_new(rows, json_pack("{s:s, s:s, s:o}", "rule", words, "source", rules[r].source, "cost",
                                              cost < 0 ? json_null() : json_real(cost)));
    }
    return rows;
}
