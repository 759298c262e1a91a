/* core/base/file: folders of files, and where output goes. */
#ifndef HD_CORE_BASE_FILE_H
#define HD_CORE_BASE_FILE_H

#include <stdio.h>

#include "heddle/types.h"

/* Opens a regular file to read; NULL: the error says "PATH: cannot open the WHAT: ...". */
FILE *hd__open_regular(const char *path, const char *what, struct hd_error *err);

/* A regular file of at most `most` bytes as text that ends with a 0; the caller frees it. NULL: refused. */
char *hd__read_text(const char *path, const char *what, size_t most, size_t *bytes, struct hd_error *err);

int hd__is_folder(const char *path);             /* 0 where it is not there, or NULL */
int hd__same_file(const char *a, const char *b); /* by device and number; 0 where one is not there */
/* Also of what is not there yet: a, ./a, a/ and ./b/../a are the same. */
int hd__same_path(const char *a, const char *b);
/* Creates the missing parent folders of a file. 0, or errno of the first that could not be created. */
int hd__make_folders(const char *path);

/* Could this file be written, and the folders that it goes through be made? 0, or errno; nothing is made. */
int hd__can_write(const char *path);

/* The storage plug-in of a place for checkpoints: "posix" of a path, of a URL its scheme: s3://... is of ckpt-s3; NULL:
 * that is no plug-in's name. */
enum { HD__STORE_NAME = 24 };
const char *hd__store_of(const char *location, char name[HD__STORE_NAME]);

/* First bytes of the HTML and SVG that commands write: a comment. */
#define HD__OUTPUT_MARK "<!-- heddle -->\n"

/* A file that a command writes replaces nothing but an older one of its kind, which begins with `begins`: another file
 * is refused, and so is a link. A device as /dev/null takes everything. hd__output_check neither changes nor creates
 * it. */
int32_t hd__output_check(const char *path, const char *begins, struct hd_error *err);
FILE *hd__output_create(const char *path, const char *begins, struct hd_error *err); /* empty; NULL: refused */
/* Closes it; refused where something of it was lost. */
int32_t hd__output_close(FILE *file, const char *path, struct hd_error *err);

/* Does the output of this process end at a terminal? hd__output_set_not_terminal: its launcher says that it does
 * not. */
int hd__output_is_terminal(void);
void hd__output_set_not_terminal(void);

#endif
