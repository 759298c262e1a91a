#include "core/base/process.h"

#include <dlfcn.h>
#include <locale.h>
#include <unistd.h>

#include "core/base/base.h"

/* 0 where results or operands below the least normal number are taken for 0, as -ffast-math sets it for the process
 * that loads what was linked with it. */
static int keeps_denormals(void)
{
    volatile float least = 1e-39F;
    return least * 0.5F != 0;
}

/* It is known only by setting it, which others' files would see: read once, before there are any. */
static mode_t first_umask(void)
{
    static mode_t mask = (mode_t)-1;
    if (mask == (mode_t)-1) {
        mask = umask(077);
        umask(mask);
    }
    return mask;
}

static void note_locale(char locale[512])
{
    const char *now = setlocale(LC_ALL, NULL);
    snprintf(locale, 512, "%s", now && strlen(now) < 512 ? now : "");
}

/* Handlers of libraries (libinfinipath, which libfabric may bring along) print, call exit() and may never return: a
 * crash ends the process by its signal, and a stop is ours to take. */
static const int signals[HD__COUNT(((struct hd__process *)0)->handlers)] = {SIGSEGV, SIGBUS, SIGILL,  SIGFPE,
                                                                            SIGABRT, SIGINT, SIGTERM, SIGHUP};

void hd__process_note(struct hd__process *p)
{
    for (size_t i = 0; i < HD__COUNT(signals); i++)
        sigaction(signals[i], NULL, &p->handlers[i]);
    if (!getcwd(p->folder, sizeof p->folder))
        *p->folder = 0;
    note_locale(p->locale);
    fegetenv(&p->floats);
    p->rounding = fegetround();
    p->denormals = keeps_denormals();
    p->umask = first_umask();
}

void hd__process_restore(const struct hd__process *p, const char *file)
{
    static char said[512]; /* processes that this one starts have it, too */
    char line[sizeof said], folder[sizeof p->folder], locale[sizeof p->locale];
    struct hd__text changed = {0};
    for (size_t i = 0; i < HD__COUNT(signals); i++)
        sigaction(signals[i], &p->handlers[i], NULL);
    if (*p->folder && (!getcwd(folder, sizeof folder) || strcmp(folder, p->folder)) && !chdir(p->folder))
        hd__text_add(&changed, ", the working directory");
    if (umask(p->umask) != p->umask)
        hd__text_add(&changed, ", the umask");
    note_locale(locale);
    if (*p->locale && strcmp(locale, p->locale) && setlocale(LC_ALL, p->locale))
        hd__text_add(&changed, ", the locale");
    if (fegetround() != p->rounding || keeps_denormals() != p->denormals) {
        hd__text_add(&changed, ", the rounding of floats (as code linked with -ffast-math does)");
        fesetenv(&p->floats);
    }
    if (!changed.length)
        return;
    snprintf(line, sizeof line, "plugin %.300s changed what is of the whole process: %s; it is put back", file,
             changed.at + 2);
    if (strcmp(said, line) != 0)
        hd__log(HD_LOG_WARN, NULL, "%s", strcpy(said, line));
    hd__text_free(&changed);
}

void hd__process_restore_after(const struct hd__process *p, uintptr_t slot)
{
    Dl_info info;
    hd__process_restore(p, dladdr((void *)slot, &info) && info.dli_fname ? info.dli_fname : "of unknown file");
}
