/* Warning about tensor parallelism across machines: it communicates in every layer, with nothing to overlap. */
#include <stdlib.h>

#include "analysis/tp_span_warning.h"
#include "core/program/cost.h"

enum { TENSOR = HD_AXIS_BIT(HD_AXIS_TP) | HD_AXIS_BIT(HD_AXIS_TQ) };

static int32_t common_divisor(int32_t a, int32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* tp is the innermost axis, so its groups are runs of ranks. Returns the first rank of the run on the most machines,
 * and their number. */
static int32_t widest_tp(const struct hd__compiled *c, int32_t tp, int32_t per_machine, int32_t *machines)
{
    int32_t found = 0;
    *machines = 1;
    for (int32_t first = 0; first < c->mesh.ranks; first += tp) {
        int32_t n = (first + tp - 1) / per_machine - first / per_machine + 1;
        if (n > *machines) {
            *machines = n;
            found = first;
        }
    }
    return found;
}

void hd__warn_tp_span(const struct hd__compiled *c, int32_t per_machine)
{
    int32_t tp = (int32_t)hd__mesh_ways(&c->mesh, TENSOR), machines, first, fits;
    struct hd__cost_totals totals;
    double bytes = 0;
    if (per_machine < 1 || tp == 1)
        return;
    first = widest_tp(c, tp, per_machine, &machines);
    fits = common_divisor(tp, per_machine);
    if (machines <= 1)
        return;
    hd__cost_totals(hd__compiled_program(c, first), NULL, &totals);
    for (uint32_t axes = 1; axes < HD__COUNT(totals.sent); axes++)
        bytes += axes & ~TENSOR ? 0 : totals.sent[axes];
    hd__log(
        HD_LOG_WARN, NULL,
        "mesh.tp = %d spans %d machines of %d rank%s (ranks %d to %d): each layer waits for the network between them, "
        "%.4g MB a step from rank %d; mesh.tp=%d stays inside a machine, with mesh.dp or mesh.pp %d times as large",
        tp, machines, per_machine, per_machine > 1 ? "s" : "", first, first + tp - 1, bytes / 1e6, first, fits,
        tp / fits);
}
