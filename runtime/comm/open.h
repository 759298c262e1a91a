/* runtime/comm/open: opens a transport as the rest of the core uses it: with every slot of the data path there.
 *
 * A component that has collectives is used as it is. One that offers only send and recv is laid under an overlay, which
 * runs the algorithms of runtime/comm/algorithms over it and offers the same table. Either way `wait` is there. */
#ifndef HD_RUNTIME_COMM_OPEN_H
#define HD_RUNTIME_COMM_OPEN_H

#include "heddle/comm.h"
#include "runtime/comm/algorithms/select.h"

struct hd__algorithm_counts;

/* The core's own streams of messages: one for each of the hooks around a transport, the innermost first; then of
 * collectives. */
enum {
    HD__HOOKS_MAX = 16,
    HD__STREAM_HOOKS = HD_STREAMS_OF_CALLERS,
    HD__STREAM_COLLECTIVES = HD__STREAM_HOOKS + HD__HOOKS_MAX
};

struct hd__comm {
    const struct hd__tuning *tuning; /* set before opening, lives as long; NULL: the built-in rules, sums in the tree */
    struct hd__algorithm_counts *counts; /* the same; NULL: algorithms are not counted */
    struct hd_comm_ops ops;              /* `memory` may still be NULL: the caller allocates */
    struct hd_comm *comm;
    uint32_t n_hooks, reserved; /* around it already */
};

/* Fills in *transport, which hd__comm_close closes; on failure there is nothing to close. Returns the component's
 * error. `settings` and `host` live as long as the transport. */
int32_t hd__comm_open(const struct hd_comm_ops *component, const struct hd_host *host, const void *settings,
                      const struct hd_world *world, struct hd__comm *transport, struct hd_error *err);
void hd__comm_close(struct hd__comm *transport);
/* Its caps with these settings. */
uint64_t hd__comm_caps_with(const struct hd_comm_ops *component, const void *settings);
/* What a component's caps become when it is opened: HD_COMM_MESSAGES_ONLY where its collectives are the core's
 * algorithms, HD_COMM_ANY_ORDER where sums then follow an order of their own. */
uint64_t hd__comm_caps(const struct hd_comm_ops *component, uint64_t caps, const struct hd__tuning *tuning);

/* ---- inside */
/* Takes over the transport inner, which is open for `world`. Then `out` is used like any transport. */
void hd__comm_software_create(struct hd__comm *inner, const struct hd_world *world, struct hd__comm *out);

#endif
