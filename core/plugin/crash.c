/* Crashes: the line that a signal says before it ends the process, with the plug-in whose code crashed. */
#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/plugin/crash.h"
#include "core/plugin/search.h"

/* Plug-ins that were opened, newest first; never freed, as their code stays mapped. */
static struct loaded {
    const struct loaded *next;
    uintptr_t from, to;
    const char *text; /* "plugin optim-NAME (/usr/lib/heddle/heddle-optim-NAME.so)" */
} * loaded;

/* Sanitizers print more of all but the first. */
static const int crashes[] = {
    SIGBUS,
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    SIGSEGV, SIGILL, SIGFPE, SIGABRT,
#endif
};
static char lines[HD__COUNT(crashes)][256];
static char process[128]; /* as messages call it */
static pid_t pid;         /* of the process that asked; its children end as they like */

static char calling[4200];
static unsigned patience;

void hd__crash_note_call(const char *function, const char *path)
{
    snprintf(calling, sizeof calling, "%s%s%s", path ? function : "", path ? " " : "", path ? path : "");
    if (patience)
        alarm(path ? patience : 0);
}

void hd__crash_note_plugin(const char *path, uintptr_t from, uintptr_t to)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *label = hd__plugin_label(name);
    struct loaded *new = hd__alloc(sizeof *new);
    *new = (struct loaded){loaded, from, to, hd__format("plugin %s (%s)", label ? label : name, path)};
    free(label);
    loaded = new;
}

static const char *plugin_at(uintptr_t address)
{
    const struct loaded *l = loaded;
    while (l && (address < l->from || address >= l->to))
        l = l->next;
    return l ? l->text : NULL;
}

/* The instruction that faulted; of a call of NULL, the one behind that call. */
static uintptr_t address_of(const ucontext_t *context)
{
#if defined(__x86_64__)
    const greg_t *r = context->uc_mcontext.gregs;
    return r[REG_RIP] ? (uintptr_t)r[REG_RIP] : *(const uintptr_t *)r[REG_RSP];
#elif defined(__aarch64__)
    return context->uc_mcontext.pc ? context->uc_mcontext.pc : context->uc_mcontext.regs[30];
#else
    (void)context;
    return 0;
#endif
}

static void say(const char *text)
{
    ssize_t said = write(STDERR_FILENO, text, strlen(text));
    (void)said;
}

static const char *plugin_on_stack(void)
{
    void *frames[64];
    const char *plugin = NULL;
    int n = backtrace(frames, HD__COUNT(frames));
    for (int k = 0; k < n && !plugin; k++)
        plugin = plugin_at((uintptr_t)frames[k]);
    return plugin || !*calling ? plugin : calling;
}

/* The line comes in parts: a stack that the crash has destroyed may end the process while it is walked. */
static void on_crash(int sig, siginfo_t *info, void *context)
{
    const char *plugin;
    (void)info;
    for (size_t i = 0; i < HD__COUNT(crashes); i++)
        if (sig == crashes[i])
            say(lines[i]);
    if ((plugin = plugin_at(address_of(context)))) {
        say(" in ");
    } else {
        plugin = plugin_on_stack();
        say(plugin ? " in a call from " : "");
    }
    say(plugin ? plugin : "");
    say("\n");
    raise(sig); /* SA_RESETHAND: the default ends the process */
}

static void on_alarm(int sig)
{
    (void)sig;
    say("error: ");
    say(calling);
    say(" does not return: mend the plug-in, or take it out of the folder\n");
    _exit(1);
}

void hd__crash_set_patience(unsigned seconds)
{
    patience = seconds;
    signal(SIGALRM, on_alarm);
}

/* exit() from a plug-in's call would look like a process that is through. */
static void on_exit_call(int code, void *user)
{
    const char *plugin = getpid() == pid ? plugin_on_stack() : NULL;
    (void)user;
    if (!plugin)
        return;
    fflush(NULL);
    fprintf(stderr, "%s was ended by exit(%d) in a call from %s: a plug-in returns an error instead\n", process, code,
            plugin);
    _exit(code ? code : 1);
}

void hd__crash_catch(const char *who, const char *bus)
{
    static char stack[65536]; /* of the main thread, whose own may have overflowed */
    struct sigaction action = {.sa_sigaction = on_crash,
                               .sa_flags = SA_RESETHAND | SA_NODEFER | SA_ONSTACK | SA_SIGINFO};
    void *frame;
    backtrace(&frame, 1); /* the first call loads a library */
    snprintf(process, sizeof process, "%s", who);
    if (!pid)
        on_exit(on_exit_call, NULL);
    pid = getpid();
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    for (size_t i = 0; i < HD__COUNT(crashes); i++) {
        snprintf(lines[i], sizeof lines[i], "%s crashed: %s%s", who, strsignal(crashes[i]),
                 crashes[i] == SIGBUS ? bus : "");
        sigaction(crashes[i], &action, NULL);
    }
}
