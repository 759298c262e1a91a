/* core/base/process: what is of the whole process, and a plug-in may leave otherwise: the folder in which it runs, the
 * umask, the locale, the rounding of floating point numbers, which new threads take over from those that start them,
 * and handlers of signals. */
#ifndef HD_CORE_BASE_PROCESS_H
#define HD_CORE_BASE_PROCESS_H

#include <fenv.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>

struct hd__process {
    char folder[1024], locale[512]; /* "": longer */
    fenv_t floats;
    int rounding, denormals;
    mode_t umask;
    struct sigaction handlers[8];
};

void hd__process_note(struct hd__process *process); /* before a plug-in's code runs */
/* Puts back what is otherwise than it was, and says so once in a warning: "plugin `file` changed the umask, ..."; of
 * handlers, which libraries install as they are loaded, nothing is said. */
void hd__process_restore(const struct hd__process *process, const char *file);
/* The same behind a call of a slot, whose file is looked up. */
void hd__process_restore_after(const struct hd__process *process, uintptr_t slot);

#endif
