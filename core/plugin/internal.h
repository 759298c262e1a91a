/* core/plugin/internal: the registry's struct, and functions of this room. */
#ifndef HD_CORE_PLUGIN_INTERNAL_H
#define HD_CORE_PLUGIN_INTERNAL_H

#include "core/plugin/plugin.h"
#include "core/plugin/search.h"

struct hd__plugins {
    const struct hd_host *host;
    struct hd__plugin_folders folders;
    struct hd__arena arena;
    HD__ARRAY(struct hd__component *) loaded;
    HD__ARRAY(struct hd__plugin_entry) entries; /* of the last scan */
};

/* ---- aliases.c */
/* Loads every component of a kind in the folders; those that cannot be used are left out. */
void hd__plugin_load_kind(struct hd__plugins *registry, uint32_t kind);
/* The loaded component that has this alias; NULL where none has. Two are refused, with both names. */
int32_t hd__plugin_find_alias(const struct hd__plugins *registry, uint32_t kind, const char *name,
                              const struct hd__component **component, struct hd_error *err);

#endif
