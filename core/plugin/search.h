/* core/plugin/search: the search for plugins, by folders and file names only; nothing is opened. */
#ifndef HD_CORE_PLUGIN_SEARCH_H
#define HD_CORE_PLUGIN_SEARCH_H

#include "core/base/base.h"

struct hd__plugin_folders {
    char **at;
    uint32_t count, room;
};

void hd__plugin_folders_add(struct hd__plugin_folders *folders,
                            const char *path); /* a folder that is already there is not added */
void hd__plugin_folders_free(struct hd__plugin_folders *folders);

/* The folder of this program's own plugins: build tree or install folder; NULL if there is none. Caller frees. */
char *hd__plugin_own_folder(void);

/* "heddle-comm-shm.so" -> "comm-shm"; NULL if it is not the name of a plugin's file. Caller frees. */
char *hd__plugin_label(const char *file);

/* The files that offer `label`: at most two, since two are ambiguous already. Caller frees paths. Returns how many. */
uint32_t hd__plugin_search(const struct hd__plugin_folders *folders, const char *label, char *paths[2]);

/* Calls visit for each plugin file in the folders, with its label. */
void hd__plugin_search_all(const struct hd__plugin_folders *folders,
                           void (*visit)(void *user, const char *label, const char *path), void *user);

/* Calls visit for each line "KIND-NAME: why" of the lists that the build wrote. */
void hd__plugin_search_skipped(const struct hd__plugin_folders *folders,
                               void (*visit)(void *user, const char *label, const char *why), void *user);

#endif
