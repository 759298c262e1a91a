/* service/train/replicas: do ranks that hold copies of a parameter, state or reduced gradient hold the same
 * bits? (`watch.replicas`)
 *
 * Copies lie along the mesh axes that shard neither the tensor nor its flat, and along which ranks do not train apart.
 * Every rank hashes each of its pieces; all ranks get one hash for all pieces that are copied along the same axes, and
 * where those differ one for each piece, until it is known which. What a strategy shards has no copies. */
#ifndef HD_SERVICE_TRAIN_REPLICAS_H
#define HD_SERVICE_TRAIN_REPLICAS_H

#include "service/train/session.h"

/* A piece of the state that has copies; its list is the same on all ranks of a pipeline stage. */
struct hd__replicated {
    hd_tensor tensor;
    uint32_t axes;           /* along which it is copied */
    uint32_t flat, param;    /* param: index into those of the flat; UINT32_MAX: all of the tensor */
    uint32_t role, fleeting; /* fleeting: a gradient that others overwrite after its update */
};
struct hd__replicated_list {
    HD__ARRAY(struct hd__replicated) at;
};

void hd__replicated_find(const struct hd_program *p, struct hd__replicated_list *list);
/* The hash of what the rank at `coord` has of it. `arena`: the host mirror. */
uint64_t hd__replicated_hash(const struct hd_program *p, const struct hd__replicated *piece, const int32_t *coord,
                             void *arena);

/* Values of a piece on all ranks of its stage that are equal in the axes' other coordinates. */
struct hd__replicas_verdict {
    int32_t n_wrong; /* ranks that differ from what most of their copies have; 0: none */
    int32_t wrong;   /* the first of them */
    struct hd__text words;
};
/* Adds to the verdict the ranks that differ in this piece; `value`: of each rank, only those of `stage` are looked
 * at. */
void hd__replicas_judge(const struct hd__mesh *mesh, int32_t stage, uint32_t axes, const uint64_t *value,
                        struct hd__replicas_verdict *verdict);

struct hd__train_replicas {
    struct hd__train_session *session;
    struct hd__replicated_list *stages; /* NULL: nothing is compared */
    int64_t every;                      /* steps; 0: whatever costs little */
    int64_t next, compared;             /* the step that is due; the newest that was compared */
    uint64_t *fleeting;                 /* by piece of this rank: the hash of a gradient before its update */
    int64_t hashed;                     /* the step that these are of */
    double hashing_s;
    int corrupt; /* copies of this state differ: it is not to be saved */
};

#define HD__NOTHING_IS_SAVED \
    "Nothing of this state is saved; launch.restarts, or the same command, goes on from the last checkpoint"

enum { HD__REPLICAS_AUTO = -1 }; /* job->watch.replicas_every */
void hd__train_replicas_init(struct hd__train_replicas *r, struct hd__train_session *session, int64_t done);
/* Before step `step`; `saves`: copies are to be compared after it, due or not. Gradients that do not last until
 * then are hashed in it. */
void hd__train_replicas_begin(struct hd__train_replicas *r, int64_t step, int saves);
/* After step `step`, which took `step_s`; `now`: whether it is due or not. HD_E_CORRUPT: the error names rank, tensor
 * and block. Collective. */
int32_t hd__train_replicas_compare(struct hd__train_replicas *r, int64_t step, double step_s, int now, int32_t *wrong,
                                   struct hd_error *err);
void hd__train_replicas_free(struct hd__train_replicas *r);

#endif
