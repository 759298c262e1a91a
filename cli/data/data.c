/* heddle data: text as tokens, and files of tokens. */
#include "cli/data/data.h"

#include <inttypes.h>
#include <stdlib.h>

#include "service/text/chat.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} verbs[] = {{"tokenize", hd__data_tokenize},
             {"inspect", hd__data_inspect},
             {"split", hd__data_split},
             {"shuffle", hd__data_shuffle},
             {"merge", hd__data_merge}};

int32_t hd__data_open_tokenizer(const char *path, const char *use, struct hd__data_tokenizer *out, struct hd_error *err)
{
    out->plugins = hd__plugins_create(hd__exec_host_table());
    int32_t rc = hd__plugins_add_default_folders(out->plugins, err);
    return rc ? rc : hd__tokenizer_open(out->plugins, hd__exec_host_table(), use, path, &out->tokenizer, err);
}

void hd__data_close_tokenizer(struct hd__data_tokenizer *t)
{
    hd__tokenizer_close(&t->tokenizer);
    hd__plugins_destroy(t->plugins);
    t->plugins = NULL;
}

int hd__data_print_error(const struct hd_error *err)
{
    int failed = err->code == HD_E_IO || err->code == HD_E_NOMEM || err->code == HD_E_INTERNAL;
    return hd__cli_print_error(err, failed ? HD__EXIT_FAILED : HD__EXIT_REFUSED);
}

static int run(int argc, char **argv)
{
    const char *names[HD__COUNT(verbs)], *nearest;
    if (argc < 2)
        return hd__cli_usage_error(&hd__command_data, "which of tokenize, inspect, split, shuffle, merge?");
    for (size_t i = 0; i < HD__COUNT(verbs); i++) {
        names[i] = verbs[i].name;
        if (!strcmp(argv[1], names[i]))
            return verbs[i].run(argc - 1, argv + 1);
    }
    nearest = hd__nearest(argv[1], names, HD__COUNT(names));
    return hd__cli_usage_error(&hd__command_data, "there is no `heddle data %s`%s%s%s", argv[1],
                               nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

const struct hd__command hd__command_data = {
    .name = "data",
    .usage =
        "tokenize --tokenizer FILE --to PREFIX [OPTIONS] FILE... | inspect PREFIX [OPTIONS] | split PREFIX --to NEW "
        "[OPTIONS] | shuffle PREFIX --to NEW [OPTIONS] | merge PREFIX PREFIX... --to NEW [OPTIONS]",
    .summary = "tokenize text, look at files of tokens, rearrange them",
    .help =
        "tokenize writes PREFIX.bin and PREFIX.idx, Megatron's indexed format, of text files (each a document) and of\n"
        "JSON lines (each line a document), plain or compressed with gzip or zstd. FILE may be a folder, which is "
        "read\n"
        "with its subfolders, or a pattern in quotes. A call that was interrupted goes on where it stopped.\n\n"
        "  --tokenizer FILE   tokenizer.json, tokenizer.model or *.tiktoken, or the folder that has one of them\n"
        "  --to PREFIX        of the files that are written\n"
        "  --field NAME       of a line of JSON lines (text)\n"
        "  --append-eod       end each document by the tokenizer's end-of-document token\n"
        "  --eod TOKEN        that token by its text, where the tokenizer does not say it\n"
        "  --chat-template NAME   lines are conversations ({\"messages\"}) or {\"prompt\", \"completion\"}:\n"
        "                     " HD__CHAT_NAMES "; PREFIX.loss then says which tokens count in the loss,\n"
        "                     for data.loss: completion\n"
        "  --no-special       special tokens that stand in the text are text, too\n"
        "  --skip-bad         leave out documents that cannot be read, and count them\n"
        "  --overwrite        replace what is there\n"
        "  --threads N        that encode (as many as there are cores); the output does not depend on it\n"
        "  --use NAME         the tokenizer's plug-in, where it is not to be found by the file\n"
        "  --json             at the end: documents, tokens, dtype, left_out, seconds\n\n"
        "inspect shows how many documents and tokens there are, their lengths, the share of each source and the\n"
        "beginning of a document.\n\n"
        "  --tokenizer FILE   decodes the sample (the file that wrote it, where it is still there)\n"
        "  --document N       the document to show (0)\n"
        "  --sample N         how many of its tokens (64)\n"
        "  --json             for machines: documents, sequences, tokens, dtype, lengths, sources, sample\n\n"
        "split draws documents by a seed into NEW-train, NEW-validation and NEW-test; shuffle writes all of them in "
        "the\n"
        "order of a seed; merge writes several files one after another.\n\n"
        "  --validation N     a number of documents, or a fraction of them; so --test, and --train (the rest)\n"
        "  --seed S           another seed, other documents (1337)\n"
        "  --overwrite        replace what is there\n"
        "  --json             for machines: prefix, documents, tokens, dtype\n",
    .example = "  heddle data tokenize --tokenizer tokenizer.json --append-eod --to tokens/web 'corpus/*.jsonl'\n"
               "  heddle data inspect tokens/web\n"
               "  heddle data split tokens/web --validation 0.01 --to tokens/web\n",
    .run = run,
};
