/* runtime/comm/open: opens a transport so that no slot of the data path is NULL.
 *
 * Collectives of the component are used directly. One with only send and recv gets software_collectives, which runs the
 * algorithms of runtime/comm/algorithms over it; so does one without `wait`. */
#ifndef HD_RUNTIME_COMM_OPEN_H
#define HD_RUNTIME_COMM_OPEN_H

#include "core/base/base.h"
#include "heddle/comm.h"
#include "runtime/comm/algorithms/select.h"

struct hd__algorithm_counts;

/* Message streams of the core: one for each hook around a transport, innermost first; then those of collectives. */
enum {
    HD__HOOKS_MAX = 16,
    HD__STREAM_HOOKS = HD_STREAMS_OF_CALLERS,
    HD__STREAM_COLLECTIVES = HD__STREAM_HOOKS + HD__HOOKS_MAX
};

struct hd__comm {
    const struct hd__tuning *tuning;     /* set before opening, outlives it; NULL: built-in rules, sums in the tree */
    struct hd__algorithm_counts *counts; /* as tuning; NULL: no counts */
    struct hd_comm_ops ops;              /* `memory` may be NULL: the caller allocates */
    struct hd_comm *comm;
    uint32_t n_hooks, reserved; /* around it so far */
};

/* The results of a transport's slots (hd__slot_result): of one that gives a handle, which is not NULL with HD_OK; of
 * others; and of progress, where what is above 0 says that something moved. */
static inline int32_t hd__comm_result(int32_t code, const char *slot, const void *handle, struct hd_error *err)
{
    if (code == HD_OK && !handle)
        return hd_fail(err, HD_E_INTERNAL, "the transport's %s returned HD_OK and gave nothing", slot);
    return hd__slot_result(code, "the transport's", slot, err);
}
static inline int32_t hd__comm_done(int32_t code, const char *slot, struct hd_error *err)
{
    return hd__slot_result(code, "the transport's", slot, err);
}
static inline int32_t hd__comm_moved(int32_t code, struct hd_error *err)
{
    return code >= 0 ? code : hd__comm_done(code, "progress", err);
}

/* Opens *transport, for hd__comm_close unless it fails with the component's error. `settings` and `host` outlive it. */
int32_t hd__comm_open(const struct hd_comm_ops *component, const struct hd_host *host, const void *settings,
                      const struct hd_world *world, struct hd__comm *transport, struct hd_error *err);
void hd__comm_close(struct hd__comm *transport);
/* Caps of a component with these settings. */
uint64_t hd__comm_caps_with(const struct hd_comm_ops *component, const void *settings);
/* Caps after opening: HD_COMM_MESSAGES_ONLY where collectives are the core's algorithms, HD_COMM_ANY_ORDER where
 * their sums may have any order. */
uint64_t hd__comm_caps(const struct hd_comm_ops *component, uint64_t caps, const struct hd__tuning *tuning);

/* software_collectives.c: takes over the open transport `inner` of `world`; `out` is the result. */
void hd__comm_software_create(struct hd__comm *inner, const struct hd_world *world, struct hd__comm *out);

#endif
