/* cli/sample_output: prints what is generated as it comes, and finds where it ends. */
#ifndef HD_CLI_SAMPLE_OUTPUT_H
#define HD_CLI_SAMPLE_OUTPUT_H

#include "cli/text.h"

struct hd__sample_prompt {
    char *text; /* as it was given; "" for messages */
    size_t bytes;
    struct hd__ids ids;
};

struct hd__sample_output {
    const struct hd__cli_text *text;
    const char *const *stop; /* texts, or ids in digits */
    uint32_t n_stops;
    int json, ignore_eos, several;
    int silent; /* finds the end, and prints nothing: all ranks but one */
    /* its own */
    struct hd__ids stop_ids, ids; /* ids: the prompt's, then those that were generated */
    const char **stop_text;
    uint32_t n_stop_texts, prompt_number;
    int64_t sample, count;
    size_t n_prompt, n_text_ids; /* n_text_ids: up to here ids have text: a token that ends it has none */
    struct hd__text before, now; /* text of the prompt, and of all */
    size_t printed, end;         /* bytes of `now` */
    const char *finish;
    struct hd_error failed;
};

int32_t hd__sample_output_open(struct hd__sample_output *out, struct hd_error *err);
void hd__sample_output_close(struct hd__sample_output *out);

int32_t hd__sample_output_begin(struct hd__sample_output *out, const struct hd__sample_prompt *prompt, uint32_t number,
                                int64_t sample, struct hd_error *err);
int hd__sample_output_token(void *out, int32_t token); /* for hd__train_sample_config.emit */
int32_t hd__sample_output_end(struct hd__sample_output *out, struct hd_error *err);

#endif
