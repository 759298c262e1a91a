/* cli/data: what the subcommands of `heddle data` share. */
#ifndef HD_CLI_DATA_H
#define HD_CLI_DATA_H

#include "cli/job.h"
#include "service/text/indexed.h"
#include "service/text/tokenizer.h"

struct hd__data_tokenizer {
    struct hd__plugins *plugins;
    struct hd__tokenizer tokenizer;
};
int32_t hd__data_open_tokenizer(const char *path, const char *use, struct hd__data_tokenizer *out,
                                struct hd_error *err);
void hd__data_close_tokenizer(struct hd__data_tokenizer *tokenizer); /* of zeros is fine */

/* A failure of inputs is a refusal. */
int hd__data_print_error(const struct hd_error *err);

int hd__data_tokenize(int argc, char **argv);
int hd__data_inspect(int argc, char **argv);
int hd__data_split(int argc, char **argv);
int hd__data_shuffle(int argc, char **argv);
int hd__data_merge(int argc, char **argv);

#endif
