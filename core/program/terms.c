/* How many terms a gradient is the sum of: one for each instruction that makes a part of it, added up where parts are. The
 * program says so as it was lowered, before anything is fused, ordered or sent; verify counts again what came of it. */
#include <stdlib.h>

#include "core/program/verify.h"

enum { MOST = 1 << 20 }; /* sums of activations may grow as they like */

static uint32_t terms_of(const uint32_t *terms, hd_tensor t)
{
    return HD__MAX(terms[t], 1);
}

uint32_t hd__terms_step(uint32_t *terms, const struct hd__instr *i, uint32_t k)
{
    uint32_t n = 1;
    if (i->op == HD_OP_ADD)
        for (uint32_t x = n = 0; x < i->n_in; x++)
            n += terms_of(terms, i->in[x]);
    else if (i->n_in && (i->op == HD_OP_ACCUM || i->op == HD_OP_COPY || hd__is_collective(i->op)))
        n = terms_of(terms, i->in[0]);
    n = HD__MIN(n, MOST);
    terms[i->out[k]] = HD__MIN(n + (hd__reads_output(i, k) ? terms[i->out[k]] : 0), MOST);
    return n;
}

/* What the gradients gain when a section is walked so often; returns what the loss gains in one walk. */
static uint32_t promise(struct hd_program *p, uint32_t *terms, const struct hd__code_section *s, uint32_t walks)
{
    uint32_t loss = 0;
    for (uint32_t n = 0; n < s->code.count; n++)
        for (uint32_t k = 0; k < s->code.at[n].n_out; k++) {
            uint32_t got = hd__terms_step(terms, &s->code.at[n], k), param = hd__tc(p, s->code.at[n].out[k])->param;
            if (s->code.at[n].op != HD_OP_ACCUM)
                continue;
            if (param)
                p->params.at[param - 1].terms += walks * got;
            if (s->code.at[n].out[k] == p->loss_sum)
                loss += got;
        }
    return loss;
}

void hd__terms_promise(struct hd_program *p)
{
    uint32_t *terms = hd__alloc(p->tensors.count * sizeof *terms);
    for (uint32_t s = 0; s < p->sections.count; s++)
        p->sections.at[s].loss_terms = promise(p, terms, &p->sections.at[s], (uint32_t)hd__section_walks(&p->sections.at[s]));
    free(terms);
}

void hd__terms_again(struct hd_program *p, const struct hd__code_section *s)
{
    uint32_t *terms = hd__alloc(p->tensors.count * sizeof *terms);
    promise(p, terms, s, 1);
    free(terms);
}
