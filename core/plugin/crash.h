/* core/plugin/crash: a crash says whose it is. */
#ifndef HD_CORE_PLUGIN_CRASH_H
#define HD_CORE_PLUGIN_CRASH_H

#include "core/base/base.h"

/* Signals of a crash (SIGSEGV, SIGBUS, ...) print "WHO crashed: Segmentation fault in plugin optim-NAME (FILE)" and end
 * the process; `bus` follows the name of SIGBUS. exit() in a plug-in's call is named too, and its code is not 0. Again
 * after code of libraries ran, which may have handlers of its own. */
void hd__crash_catch(const char *who, const char *bus);
/* A plug-in's file is being opened, and its constructors run; NULL: no longer. */
void hd__crash_note_opening(const char *path);
/* The code of a plug-in's file lies at [from, to). */
void hd__crash_note_plugin(const char *path, uintptr_t from, uintptr_t to);

#endif
