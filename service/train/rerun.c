/* Running instructions twice: when, and what is said of a difference. */
#include "service/train/rerun.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/ops.h"
#include "service/train/replicas.h"

enum { EVERY = 100 }; /* steps, of auto */

int64_t hd__train_rerun_every(const struct hd__compiled *c)
{
    int host_memory = (c->device_choice.component->ops.device.caps & HD_DEVICE_HOST_MEMORY) != 0;
    return c->job->watch.rerun_every >= 0 ? c->job->watch.rerun_every : host_memory ? EVERY : 0;
}

void hd__train_rerun_next(struct hd__train_session *session, int64_t step)
{
    const int64_t key[] = {step, session->env->rank};
    hd__exec_rerun_next(session->exec, hd__hash(key, sizeof key, (uint64_t)session->compiled->job->seed));
}

enum { DIFFERS, SECTION, INSTR, RUN };

static void add_words(const struct hd_program *p, const double *of, struct hd__text *words)
{
    const struct hd__code_section *section = &p->sections.at[(uint32_t)of[SECTION]];
    const struct hd__instr *i = &section->code.at[(uint32_t)of[INSTR]];
    const struct hd__tensor *t = hd__tensor_const(p, (hd_tensor)of[DIFFERS]);
    const char *block = p->blocks.at[i->block];
    hd__text_add(
        words, "%s (%s%s%ssection %s, instruction %u, run %d) ran twice on the same inputs, and the bits of %s differ",
        hd__instr_name(i), *block ? "block " : "", *block ? block : "", *block ? ", " : "", section->name,
        (uint32_t)of[INSTR], (int32_t)of[RUN] + 1, t->name);
}

int32_t hd__train_rerun_name(struct hd__train_session *session, int64_t step, int32_t *wrong, struct hd_error *err)
{
    const struct hd__compiled *c = session->compiled;
    const struct hd__exec_rerun *r = hd__exec_get_rerun(session->exec);
    double own[HD__GATHERED] = {(double)r->differs, r->section, r->instr, r->run};
    double *all = hd__alloc((size_t)c->mesh.ranks * HD__GATHERED * sizeof *all);
    struct hd__text words = {0};
    int32_t rc = hd__exec_all_gather(session->exec, own, all, err), n = 0;
    for (int32_t rank = 0; rank < c->mesh.ranks && !rc; rank++) {
        const double *of = &all[rank * HD__GATHERED];
        if (of[DIFFERS] == 0)
            continue;
        if (!n++) {
            *wrong = rank;
            hd__text_add(&words, "on rank %d ", rank);
            add_words(hd__compiled_program(c, rank), of, &words);
        }
    }
    if (n > 1)
        hd__text_add(&words, "; so it is on %d more rank%s", n - 1, n > 2 ? "s" : "");
    if (!rc)
        rc = hd_fail(err, HD_E_CORRUPT,
                     "silent corruption in step %" PRId64
                     ": %s: look at the processor and memory of its machine. " HD__NOTHING_IS_SAVED,
                     step, words.at);
    hd__text_free(&words);
    free(all);
    return rc;
}
