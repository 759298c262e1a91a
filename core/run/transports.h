/* core/run/transports: the job's transports on this rank, opened once each, and groups on them. */
#ifndef HD_CORE_RUN_TRANSPORTS_H
#define HD_CORE_RUN_TRANSPORTS_H

#include "core/compile/compile.h"

struct hd__transport {
    const struct hd__section *section; /* of the job; transports are told apart by it */
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
};

struct hd__group_ref {
    uint32_t axes, members;
    struct hd__transport *transport;
    struct hd_comm_group *group;
    int32_t size, me;
};

struct hd__transports {
    HD__ARRAY(struct hd__transport *) at;
    HD__ARRAY(struct hd__group_ref *) groups;
    const struct hd__compiled *compiled;
    struct hd_store *store;
    int32_t rank, local_rank, local_ranks, reserved;
};

/* Opens what the job's axes larger than 1 name. Collective. */
int32_t hd__transports_open(struct hd__transports *t, struct hd_error *err);
void hd__transports_close(struct hd__transports *t);
/* The group of this rank along axes. Collective, in the same order on all ranks; the same axes give the same group. */
int32_t hd__transports_group(struct hd__transports *t, uint32_t axes, uint32_t members, struct hd__group_ref **group,
                             struct hd_error *err);

#endif
