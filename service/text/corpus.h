/* service/text/corpus: the files of a corpus. A source is a file, a folder, which is read with its subfolders, or a
 * glob pattern; its files come in the order of their names. */
#ifndef HD_SERVICE_TEXT_CORPUS_H
#define HD_SERVICE_TEXT_CORPUS_H

#include "core/base/base.h"

struct hd__corpus_file {
    char *path;
    uint32_t source; /* number of the source that it belongs to */
    uint32_t lines;  /* JSON lines: a document a line; else the whole file is one */
    uint64_t bytes;
    int64_t mtime; /* nanoseconds */
};

struct hd__corpus {
    HD__ARRAY(struct hd__corpus_file) files;
    HD__ARRAY(char *) sources;
    uint64_t bytes;         /* of all files, as they lie */
    uint32_t tokens, texts; /* token files are looked for, not text; files of text among them */
    uint32_t silent, reserved;
};

/* A folder's files are those whose names say text or JSON lines, compressed ones too; others are named in the log. A
 * source without a file is refused. */
int32_t hd__corpus_find(const char *const *sources, size_t n, struct hd__corpus *corpus, struct hd_error *err);
/* The same of one source, without a word in the log. */
int32_t hd__corpus_list(const char *source, struct hd__corpus *corpus, struct hd_error *err);
void hd__corpus_free(struct hd__corpus *corpus);

/* Token files (.bin, .npy) of a folder, or those that match a pattern. A folder that has text as well is one of text:
 * no files are found there. Other files are left out without a word. */
int32_t hd__corpus_find_tokens(const char *source, struct hd__corpus *corpus, struct hd_error *err);

/* Does the name say text or JSON lines ("a.jsonl.gz")? */
int hd__corpus_is_text_name(const char *path);
/* Or tokens (".bin", ".npy")? */
int hd__corpus_is_tokens_name(const char *path);

#endif
