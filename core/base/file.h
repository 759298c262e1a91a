/* core/base/file: folders of files, and where output goes. */
#ifndef HD_CORE_BASE_FILE_H
#define HD_CORE_BASE_FILE_H

#include <stdio.h>

#include "heddle/types.h"

/* Opens a regular file to read; NULL: the error says "PATH: cannot open the WHAT: ...". */
FILE *hd__open_regular(const char *path, const char *what, struct hd_error *err);

/* Creates the missing parent folders of a file. 0, or errno of the first that could not be created. */
int hd__make_folders(const char *path);

/* Could this file be written, and the folders that it goes through be made? 0, or errno; nothing is made. */
int hd__can_write(const char *path);

/* Does the output of this process end at a terminal? hd__output_set_not_terminal: its launcher says that it does
 * not. */
int hd__output_is_terminal(void);
void hd__output_set_not_terminal(void);

#endif
