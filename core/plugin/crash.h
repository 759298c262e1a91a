/* core/plugin/crash: a crash says whose it is. */
#ifndef HD_CORE_PLUGIN_CRASH_H
#define HD_CORE_PLUGIN_CRASH_H

#include "core/base/base.h"

/* Signals of a crash (SIGSEGV, SIGBUS, ...) print "WHO crashed: Segmentation fault in plugin optim-NAME (FILE)" and end
 * the process; `bus` follows the name of SIGBUS. exit() in a plug-in's call is named too, and its code is not 0. Again
 * after code of libraries ran, which may have handlers of its own. */
void hd__crash_catch(const char *who, const char *bus);
/* A function of a plug-in's file is being called ("a constructor of"); path NULL: no longer. One that does not return
 * in so many seconds, 0: for ever, ends the process with exit code 1 and a line that names it. */
void hd__crash_note_call(const char *function, const char *path);
void hd__crash_set_patience(unsigned seconds);
enum { HD__CRASH_PATIENCE = 90 }; /* a probe may wait for a driver: 60 s, in device-cuda's */
/* The code of a plug-in's file lies at [from, to). */
void hd__crash_note_plugin(const char *path, uintptr_t from, uintptr_t to);

#endif
