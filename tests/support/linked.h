/* tests/support/linked: a component of this program, in a registry as if it was loaded from a file. */
#ifndef HD_TESTS_SUPPORT_LINKED_H
#define HD_TESTS_SUPPORT_LINKED_H

#include "core/plugin/internal.h"

static inline int32_t add_linked(struct hd__plugins *registry, hd_plugin_entry entry, struct hd_error *err)
{
    const struct hd_component *first = entry()->components[0];
    struct hd__component *own = hd__arena_alloc(&registry->arena, sizeof *own);
    int32_t rc = hd__plugin_normalise(&registry->arena, entry(), first->kind, first->name, "(linked in)", own, err);
    if (!rc)
        hd__push(&registry->loaded, own);
    return rc;
}

#endif
