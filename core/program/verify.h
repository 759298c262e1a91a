/* What verify.c, meaning.c, placed.c, overlap.c, owed.c, settled.c, gathered.c, together.c and turned.c share: where a fault is,
 * and the list of faults. */
#ifndef HD_CORE_PROGRAM_VERIFY_H
#define HD_CORE_PROGRAM_VERIFY_H

#include "core/program/ops.h"
#include "core/program/touch.h"

struct hd__faults {
    const struct hd_program *p;
    const struct hd__code_section *section; /* where the walk is */
    uint32_t n;
    uint64_t gains[HD_MAX_OUT]; /* the values that this instruction makes or adds: meaning.c */
    uint32_t count;
    struct hd__text text;
};

/* Adds "section #n op tensor: ..." unless enough were found. */
void hd__fault(struct hd__faults *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* overlap.c: no two temporaries of a section that are alive at once share memory. By buffer: `carried`, which lives for a step
 * and was made by an earlier section of it; those of this one join. */
void hd__check_overlap(struct hd__faults *f, const struct hd__code_section *section, const uint32_t *position, uint8_t *carried);

/* placed.c: the placements of an instruction's outputs follow from those of its inputs. */
void hd__check_placed(struct hd__faults *f, const struct hd__instr *i);

/* owed.c: every gradient buffer holds, for each range, sums that are still owed over some axes. */
struct hd__owed;
struct hd__owed *hd__owed_new(const struct hd_program *p);
void hd__owed_free(struct hd__owed *o);
/* What instruction f->n does to them; reports what is summed twice, mixed, or missing when the optimizer
 * reads. */
void hd__owed_step(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i);

/* By tensor: the flat, index + 1, whose gradient the optimizer reads there; 0 for others. Caller frees. */
static inline uint32_t *hd__flats_by_shard(const struct hd_program *p)
{
    uint32_t *flat = hd__alloc(p->tensors.count * sizeof *flat);
    for (uint32_t f = 0; f < p->flats.count; f++)
        flat[p->flats.at[f].shard] = f + 1;
    flat[0] = 0;
    return flat;
}

/* Does it change parameters? */
static inline int hd__is_update(const struct hd__instr *i)
{
    return hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ;
}

/* How often verify walks a section in a step: what one round leaves behind meets the next. */
static inline int32_t hd__section_walks(const struct hd__code_section *s)
{
    return s->repeat > 1 ? 2 : 1;
}

/* meaning.c: every instruction reads and makes what the model says, and other stages are sent it. */
struct hd__meaning;
struct hd__meaning *hd__meaning_new(const struct hd_program *p);
void hd__meaning_free(struct hd__meaning *m);
void hd__meaning_begin(struct hd__meaning *m);
/* Fills f->gains. `terms`: by tensor, how many it has been made of in this section, this instruction's included. */
void hd__meaning_step(struct hd__meaning *m, struct hd__faults *f, const struct hd__instr *i, const uint32_t *terms);
void hd__meaning_end(struct hd__meaning *m, struct hd__faults *f, const struct hd__code_section *section);

/* settled.c: loss and norm are summed once, and parameters are updated once. */
struct hd__settled;
struct hd__settled *hd__settled_new(const struct hd_program *p);
void hd__settled_free(struct hd__settled *s);
void hd__settled_begin(struct hd__settled *s, const struct hd__code_section *section);
void hd__settled_step(struct hd__settled *s, struct hd__faults *f, const struct hd__instr *i);
void hd__settled_end(struct hd__settled *s, struct hd__faults *f, const struct hd__code_section *section);

/* gathered.c: what the model reads of parameters is as new as their master weights. */
struct hd__gathered;
struct hd__gathered *hd__gathered_new(const struct hd_program *p);
void hd__gathered_free(struct hd__gathered *g);
void hd__gathered_begin(struct hd__gathered *g, const struct hd__code_section *section);
void hd__gathered_step(struct hd__gathered *g, struct hd__faults *f, const struct hd__instr *i);
void hd__gathered_end(struct hd__gathered *g, struct hd__faults *f, const struct hd__code_section *section);
/* Does a, which is no window, lie over all of b? */
int hd__covers(const struct hd_program *p, hd_tensor a, hd_tensor b);

/* together.c: ranks that are apart are brought together, by the mean of what they have trained. */
struct hd__together;
struct hd__together *hd__together_new(const struct hd_program *p);
void hd__together_free(struct hd__together *g);
void hd__together_begin(struct hd__together *g, const struct hd__code_section *section);
void hd__together_step(struct hd__together *g, struct hd__faults *f, const struct hd__instr *i);
void hd__together_end(struct hd__together *g, struct hd__faults *f);
void hd__together_check(const struct hd_program *p, struct hd__faults *f);

/* turned.c: what goes around a ring is used where it has come to. */
struct hd__turned;
struct hd__turned *hd__turned_new(const struct hd_program *p);
void hd__turned_free(struct hd__turned *t);
void hd__turned_step(struct hd__turned *t, struct hd__faults *f, const struct hd__instr *i);

#endif
