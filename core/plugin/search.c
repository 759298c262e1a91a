/* Search for plugins: folders, file names, the list of those that were not built. */
#include "core/plugin/search.h"
#include "core/base/file.h"
#include "core/plugin/folders.h" /* from meson */

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define PREFIX "heddle-"
#define SUFFIX ".so"
#define SKIPPED "skipped-plugins.txt"

void hd__plugin_folders_add(struct hd__plugin_folders *folders, const char *path)
{
    for (uint32_t i = 0; i < folders->count; i++)
        if (hd__same_file(folders->at[i], path))
            return;
    char *copy = hd__strdup(path);
    hd__push(folders, copy);
}

void hd__plugin_folders_free(struct hd__plugin_folders *folders)
{
    for (uint32_t i = 0; i < folders->count; i++)
        free(folders->at[i]);
    hd__free_array(folders);
}

/* ---- the program's own folder */

/* Tries PATTERN of two strings; a folder that has the list of skipped plugins is one that the build made. */
static char *try_folder(const char *base, const char *below)
{
    char *folder = hd__format("%s/%s", base, below);
    char *list = hd__format("%s/" SKIPPED, folder);
    int there = access(list, F_OK) == 0;
    free(list);
    if (there)
        return folder;
    free(folder);
    return NULL;
}

/* HD__ABI_DIR comes from meson: libdir/heddle/abi1, relative to the prefix or absolute. */
char *hd__plugin_own_folder(void)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash, *found, *prefix;
    if (n <= 0)
        return NULL;
    exe[n] = 0;
    slash = strrchr(exe, '/');
    if (!slash)
        return NULL;
    *slash = 0;
    if ((found = try_folder(exe, "plugins")))
        return found;
    if (HD__ABI_DIR[0] == '/')
        return try_folder(HD__ABI_DIR, ".");
    prefix = hd__format("%s/..", exe);
    found = try_folder(prefix, HD__ABI_DIR);
    free(prefix);
    return found ? found : try_folder(HD__PREFIX, HD__ABI_DIR);
}

/* ---- one plugin */

uint32_t hd__plugin_search(const struct hd__plugin_folders *folders, const char *label, char *paths[2])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < folders->count && n < 2; i++)
        for (int nested = 0; nested < 2 && n < 2; nested++) {
            char *path =
                hd__format("%s/%s%s" PREFIX "%s" SUFFIX, folders->at[i], nested ? label : "", nested ? "/" : "", label);
            if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && !(n && hd__same_file(paths[0], path)))
                paths[n++] = path;
            else
                free(path);
        }
    return n;
}

/* ---- all of them */

typedef void (*visit_fn)(void *user, const char *label, const char *path);

char *hd__plugin_label(const char *file)
{
    size_t n = strlen(file), p = sizeof PREFIX - 1, s = sizeof SUFFIX - 1;
    if (n <= p + s || memcmp(file, PREFIX, p) != 0 || memcmp(file + n - s, SUFFIX, s) != 0)
        return NULL;
    char *label = hd__strdup(file + p);
    label[n - p - s] = 0;
    return label;
}

static void search_folder(const char *folder, const char *only, visit_fn visit, void *user)
{
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *path = hd__format("%s/%s", folder, names[i]->d_name);
        char *label = hd__plugin_label(names[i]->d_name);
        if (label && (!only || strcmp(label, only) == 0))
            visit(user, label, path);
        else if (!only && !label && names[i]->d_name[0] != '.' && hd__is_folder(path))
            search_folder(path, names[i]->d_name, visit, user);
        free(label);
        free(path);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

void hd__plugin_search_all(const struct hd__plugin_folders *folders, visit_fn visit, void *user)
{
    for (uint32_t i = 0; i < folders->count; i++)
        search_folder(folders->at[i], NULL, visit, user);
}

static void read_skipped(FILE *file, visit_fn visit, void *user)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        char *colon = strchr(line, ':');
        if (!colon || line[0] == '#')
            continue;
        *colon++ = 0;
        colon += strspn(colon, " ");
        colon[strcspn(colon, "\n")] = 0;
        visit(user, line, colon);
    }
    free(line);
}

void hd__plugin_search_skipped(const struct hd__plugin_folders *folders, visit_fn visit, void *user)
{
    for (uint32_t i = 0; i < folders->count; i++) {
        char *path = hd__format("%s/" SKIPPED, folders->at[i]);
        FILE *file = fopen(path, "r");
        free(path);
        if (!file)
            continue;
        read_skipped(file, visit, user);
        fclose(file);
    }
}
