/* The plug-in that a plug-in of tests stands upon. */
#ifndef HD_TESTS_PLUGINS_INNER_H
#define HD_TESTS_PLUGINS_INNER_H

#include <dlfcn.h>

#include "heddle/plugin.h"

/* The first component of a shared object; NULL where there is none. */
static inline const struct hd_component *inner_component(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    hd_plugin_entry entry;
    *(void **)&entry = library ? dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    return entry ? entry()->components[0] : NULL;
}

/* `outer` has `own` options of its own in a table with room for so many; behind them, once, come those of `inner`,
 * whose settings lie `offset` bytes into outer's. 0 where something has no room. */
static inline int inner_options(struct hd_component *outer, struct hd_option *table, size_t own, size_t room,
                                const struct hd_component *inner, size_t offset)
{
    if (inner->settings_size > outer->settings_size - offset || own + inner->n_options > room)
        return 0;
    if (outer->n_options > own)
        return 1;
    for (size_t i = 0; i < inner->n_options; i++) {
        table[own + i] = inner->options[i];
        table[own + i].offset += offset;
    }
    outer->n_options = own + inner->n_options;
    return 1;
}

#endif
