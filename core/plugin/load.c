/* Opening a plugin's file. A failed dlopen says what the user can do about it, not only what ld.so said. */
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base/process.h"
#include "core/plugin/crash.h"
#include "core/plugin/plugin.h"

enum { MAJORS_TO_TRY = 16 };

/* ld.so: "libfoo.so.7: cannot open shared object file: ..." begins with the library that is missing. */
static int32_t missing_library(const char *path, const char *why, struct hd_error *err)
{
    const char *colon = strstr(why, ": cannot open shared object file");
    if (!colon || strncmp(why, path, strlen(path)) == 0)
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "plugin %s needs the library %.*s, which is not on this machine: install it (or add its folder to "
                   "LD_LIBRARY_PATH), or build the plugin again",
                   path, (int)(colon - why), why);
}

static int32_t undefined_symbol(const char *path, const char *why, struct hd_error *err)
{
    static const char mark[] = "undefined symbol: ";
    const char *symbol = strstr(why, mark);
    if (!symbol)
        return HD_OK;
    symbol += sizeof mark - 1;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "plugin %s uses the symbol %.*s, which neither it nor its libraries define: link the library that "
                   "has it (a plugin gets nothing from heddle itself; -Wl,-z,defs finds this at build time)",
                   path, (int)strcspn(symbol, " (,"), symbol);
}

static int32_t open_failed(const char *path, struct hd_error *err)
{
    const char *why = dlerror();
    int32_t r;
    if (!why)
        why = "unknown error";
    if ((r = missing_library(path, why, err)) || (r = undefined_symbol(path, why, err)))
        return r;
    return hd_fail(err, HD_E_UNSUPPORTED, "plugin %s cannot be loaded: %s", path, why);
}

/* No heddle_plugin_v1: perhaps it was built for another major version of the ABI. */
static int32_t no_entry(const char *path, void *handle, struct hd_error *err)
{
    for (int major = 0; major < MAJORS_TO_TRY; major++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "heddle_plugin_v%d", major);
        if (major != HD_ABI_MAJOR && dlsym(handle, symbol))
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "plugin %s speaks ABI major %d (symbol %s), this heddle speaks %d: use a plugin built with "
                           "this heddle's headers%s",
                           path, major, symbol, HD_ABI_MAJOR, major > HD_ABI_MAJOR ? ", or a newer heddle" : "");
    }
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "%s is not a heddle plugin: it has no symbol " HD_PLUGIN_SYMBOL ", which HD_PLUGIN_EXPORT defines",
                   path);
}

/* ld.so maps a file as its headers say, and what lies behind its end is a bus error. */
static int32_t check_whole(const char *file, struct hd_error *err)
{
    FILE *in = fopen(file, "r");
    ElfW(Ehdr) head;
    ElfW(Phdr) part;
    uint64_t wanted = 0;
    if (in && fread(&head, sizeof head, 1, in) == 1 && !memcmp(head.e_ident, ELFMAG, SELFMAG) &&
        head.e_phentsize == sizeof part)
        for (int k = 0; k < head.e_phnum && !fseeko(in, (off_t)(head.e_phoff + (size_t)k * sizeof part), SEEK_SET) &&
                        fread(&part, sizeof part, 1, in) == 1;
             k++)
            wanted = part.p_type == PT_LOAD ? HD__MAX(wanted, part.p_offset + part.p_filesz) : wanted;
    uint64_t bytes = in && !fseeko(in, 0, SEEK_END) ? (uint64_t)ftello(in) : wanted;
    if (in)
        fclose(in);
    return bytes >= wanted ? HD_OK
                           : hd_fail(err, HD_E_UNSUPPORTED,
                                     "plugin %s is cut: it has %llu bytes, of %llu or more: build or copy it again",
                                     file, (unsigned long long)bytes, (unsigned long long)wanted);
}

/* One of the loaded libraries: `user` is the link map of the one that is looked for. */
static int note_place(struct dl_phdr_info *info, size_t bytes, void *user)
{
    const struct link_map *map = user;
    uintptr_t end = 0;
    (void)bytes;
    if (info->dlpi_addr != map->l_addr)
        return 0;
    for (int k = 0; k < info->dlpi_phnum; k++)
        if (info->dlpi_phdr[k].p_type == PT_LOAD)
            end = HD__MAX(end, info->dlpi_phdr[k].p_vaddr + info->dlpi_phdr[k].p_memsz);
    hd__crash_note_plugin(map->l_name, map->l_addr, map->l_addr + end);
    return 1;
}

int32_t hd__plugin_open(const char *path, const struct hd_plugin **plugin, struct hd_error *err)
{
    /* dlopen searches the system's folders for a name without a slash. */
    char *file = strchr(path, '/') ? hd__strdup(path) : hd__format("./%s", path);
    int32_t r = check_whole(file, err);
    if (r) {
        free(file);
        return r;
    }
    struct hd__process process;
    hd__process_note(&process);
    hd__crash_note_call("a constructor of", file);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    hd__crash_note_call("", NULL);
    hd__process_restore(&process, file);
    hd_plugin_entry entry;
    if (!handle) {
        r = open_failed(file, err);
        free(file);
        return r;
    }
    free(file);
    struct link_map *map;
    if (!dlinfo(handle, RTLD_DI_LINKMAP, &map))
        dl_iterate_phdr(note_place, map);
    *(void **)&entry = dlsym(handle, HD_PLUGIN_SYMBOL); /* the cast that POSIX prescribes */
    if (!entry)
        return no_entry(path, handle, err);
    hd__crash_note_call(HD_PLUGIN_SYMBOL "() of", path);
    *plugin = entry();
    hd__crash_note_call("", NULL);
    return *plugin ? HD_OK
                   : hd_fail(err, HD_E_UNSUPPORTED,
                             "plugin %s: " HD_PLUGIN_SYMBOL "() returned NULL: return the descriptor", path);
}
