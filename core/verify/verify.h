/* core/verify: the proofs within a rank. One walk of a program's sections, in the order of a step, over one abstract
 * state: what is known of every tensor, buffer and flat at the instruction where the walk is. */
#ifndef HD_CORE_VERIFY_VERIFY_H
#define HD_CORE_VERIFY_VERIFY_H

#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"

/* verify.c: rules within one rank. The first diagnostics, one a line, go to err->message. Sets gather_deferred. */
int32_t hd__verify(struct hd_program *p, struct hd_error *err);
/* The memory of what hd__memory_evaluation left of a program. */
int32_t hd__verify_memory(struct hd_program *p, struct hd_error *err);

/* ---- the abstract state */

/* A value on ranks that are apart: facts.c */
struct hd__mean {
    uint32_t varying_axes;   /* along which ranks hold different ones */
    uint32_t unreduced_axes; /* over which it is a share of a mean, still to be summed */
    double common;           /* how often averages that ranks have in common are in it */
    double *trained;         /* the parameters that ranks have trained, by how far back the rank is; NULL: none */
    hd_tensor other;         /* something else that is in it; 0: nothing */
};

/* An interval of a buffer of gradients, in elements of the full flat buffer; a shard stands for the full buffer, as all
 * ranks' shards are alike: grad_reduce.c */
struct hd__gradient {
    int64_t lo, hi; /* of encoded gradients too: the elements that they stand for */
    uint32_t param; /* index into hd_program.params */
    uint32_t unreduced_axes;
    uint32_t decode_axes; /* encoded: axes whose members' parts are here, to be summed when they are decoded */
    uint32_t parts;       /* encoded: in so many parts, one for each member of an exchange */
    uint32_t cut_axes;    /* encoded: of it a member has its part alone, along these axes, after an exchange */
    uint32_t form;        /* HD__GRADIENT_WHOLE, ... */
    uint64_t value;       /* value number over a step, all micro-batches */
};

#define HD__NO_PARAM UINT32_MAX /* a low-rank factor that nothing was projected onto yet */

/* A gradient; its product with a low-rank factor; that orthogonalised, equal on all members; zeros. */
enum { HD__GRADIENT_WHOLE = 0, HD__GRADIENT_PROJECTED, HD__GRADIENT_ORTHOGONAL, HD__GRADIENT_ZERO };

typedef HD__ARRAY(struct hd__gradient) hd__gradients; /* sorted, disjoint */

struct hd__tensor_state {
    struct hd__mean mean;
    uint32_t shard_of;    /* the flat, index + 1, whose gradient the optimizer reads here */
    uint32_t terms;       /* added up to it so far in this section, with this instruction's */
    uint32_t ring_offset; /* ring_offset.c; 0: at home */
    uint8_t taken;        /* another has taken its memory */
    uint8_t dirty;        /* computed; a main copy's home is older */
    uint8_t followed;     /* parameters, or a strategy's state of them: facts.c */
};

struct hd__buffer_state {
    hd__gradients gradients;
    const struct hd_custom_op *state_of; /* attributes.c: whose state lies here */
    uint32_t full_of;                    /* the flat, index + 1, whose full weights lie here from step to step */
    uint32_t in_flight;                  /* the first flight; 0: none */
    uint8_t life;                        /* ABSENT, DEFINED, RELEASED */
    uint8_t carried;                     /* an earlier section of this step has touched what lives for a step */
    uint8_t dtype;                       /* of what lies there; 0: nothing yet */
    uint8_t feedback;                    /* error feedback lies there, which this step has read, written: facts.c */
    uint8_t has_gradients;               /* some were put there, though none may be left */
    uint8_t is_model;                    /* weights or states of the optimizer: no custom op writes them */
    uint8_t zero_init;                   /* a strategy keeps it from step to step: what it had before may stay */
    uint32_t fact;                       /* declared of what lies there, index + 1 */
    uint8_t known;                       /* something of a role or a fact lies there */
};

struct hd__flat_state {
    uint64_t seed;    /* of stochastic rounding, + 1 */
    uint32_t updates; /* in this step */
    uint8_t stale;    /* full weights are older than their master weights: staleness.c */
    uint8_t stale_at_end;
};

struct hd__async_access { /* an asynchronous access */
    struct hd__access touch;
    uint32_t instr; /* position */
    uint32_t next;  /* of the same buffer; 0: none */
};

struct hd__norm_term {   /* one parameter's part of the gradient norm */
    uint32_t param, cut; /* axes along which it lies in pieces */
    double weight;
};

struct hd__rank_query { /* all that an instruction's view of a rank depends on: rank_view.c */
    uint64_t members;
    uint32_t op, tag, axes, converts, from, to, shard[4];
};

struct hd__walk {
    const struct hd_program *p;
    const struct hd__code_section *section; /* NULL: the program as a whole */
    uint32_t position, count;               /* in the section; diagnostics so far */
    struct hd__text text;

    struct hd__tensor_state *tensor;
    struct hd__buffer_state *buffer;
    struct hd__flat_state *flat;
    struct hd__value_numbers *values;
    uint64_t contribution[HD_MAX_OUT]; /* value numbers that this instruction makes or adds */
    uint32_t *instr_at;                /* hd__instr_positions */
    uint8_t *waits;                    /* by position: IDLE, IN_FLIGHT, ... */
    HD__ARRAY(struct hd__async_access) flights;

    struct hd__access access[HD__MAX_ACCESSES]; /* of the instruction at `position` */
    uint32_t n_accesses;

    /* once.c: the loss and the norm, as sums over axes */
    uint64_t loss; /* this section's part */
    uint32_t loss_unreduced, norm_summed;
    uint8_t loss_cleared, norm_cleared;
    uint8_t norm_added, norm_checked; /* norm2 is made of all digits; it was looked at since it changed */
    HD__ARRAY(struct hd__norm_term) norm_terms;

    /* facts.c: parameters, then states that strategies declare of them */
    HD__ARRAY(hd_tensor) followed;
    uint32_t n_params;    /* of them */
    uint32_t own_section; /* this section is a strategy's own */
    struct hd__arena arena;

    HD__ARRAY(struct hd__rank_query) asked; /* rank_view.c */
    uint32_t stale_at_end;                  /* staleness.c: are any full weights, when a step ends? */
};

/* Adds "section #n op tensor: ..." unless enough were found; while there is no section, a fault of the program as a
 * whole, which is not counted. */
void hd__diag(struct hd__walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline const char *hd__name_of(const struct hd__walk *w, hd_tensor t)
{
    return hd__tensor_const(w->p, t)->name;
}

/* ---- rules: each file's, for its part of the state. Any slot but visit may be NULL */

struct hd__rules {
    void (*begin)(struct hd__walk *w); /* the state before the first section */
    void (*section_begin)(struct hd__walk *w);
    void (*visit)(struct hd__walk *w, const struct hd__instr *i);
    void (*section_end)(struct hd__walk *w);
    void (*finish)(struct hd__walk *w); /* after all sections */
};

extern const struct hd__rules hd__rules_value_numbers, hd__rules_grad_reduce, hd__rules_once, hd__rules_staleness,
    hd__rules_facts, hd__rules_ring_offset, hd__rules_placement, hd__rules_dtypes, hd__rules_rank_view,
    hd__rules_attributes;

/* memory_overlap.c: no two temporaries of the section that are live at the same time share memory. */
void hd__check_temporaries(struct hd__walk *w);
/* Persistent buffers of each memory share no byte and lie inside its arena; arenas share none. */
void hd__check_arenas(struct hd__walk *w);

/* Does it change parameters? */
static inline int hd__is_update(const struct hd__instr *i)
{
    return hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ;
}

/* staleness.c: does a, which is no shard view, cover all of b? */
int hd__covers(const struct hd_program *p, hd_tensor a, hd_tensor b);

/* ---- grad_intervals.c: the gradients of a tensor's buffer */

struct hd__range {
    int64_t lo, hi;
};

/* NULL if there never were any, unless they are to be made. */
hd__gradients *hd__gradients_of(struct hd__walk *w, hd_tensor t, int make);
/* Elements of the full flat buffer that a tensor stands for. */
struct hd__range hd__range_of(const struct hd_program *p, hd_tensor id);
uint32_t hd__gradient_find(const hd__gradients *l, int64_t lo); /* the first that ends after lo */
void hd__gradient_split(hd__gradients *l, int64_t at);          /* none crosses `at` afterwards */
void hd__gradient_erase(hd__gradients *l, struct hd__range r);
void hd__gradient_set(hd__gradients *l, struct hd__gradient x);
/* Adds x to a tensor's memory: both must be unreduced over the same axes. */
void hd__gradient_add(struct hd__walk *w, hd_tensor to, struct hd__gradient x);
const char *hd__gradient_name(const struct hd__walk *w, uint32_t param);

/* ---- grad_lowrank.c: matrices that travel as products; then the state that is left at the update */
void hd__lowrank_orthogonalise(struct hd__walk *w, const struct hd__instr *i);
void hd__lowrank_multiply(struct hd__walk *w, const struct hd__instr *i);
void hd__lowrank_blend(struct hd__walk *w, const struct hd__instr *i);
void hd__lowrank_check_state(struct hd__walk *w);

#endif
