/* Text to tokens by `heddle data`, and jobs that train on text: the tokenizer is the small BPE of
 * tests/golden/indexed.py. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/system.h"

#define INDEXED GOLDEN_DIR "/indexed"
#define TOKENIZER INDEXED "/tokenizer.json"
#define TEXT_JOB "llama.yaml model.vocab=320 data.tokenizer=" TOKENIZER " data.val_fraction=0.1"

static json_t *output(struct command *c)
{
    json_error_t why;
    expect_code(c, 0);
    json_t *o = json_loads(c->out, JSON_ALLOW_NUL, &why);
    ck_assert_msg(o != NULL, "%s: %s", why.text, c->out);
    return o;
}

static json_int_t number(const json_t *o, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(o, key)), "no number %s", key);
    return json_integer_value(json_object_get(o, key));
}

static void expect_same_file(const char *a, const char *b)
{
    ck_assert_msg(!system(keep(hd__format("cmp -s %s %s", a, b))), "%s differs from %s", a, b);
}

/* The chain from text to Megatron's files has the bytes that tokenizers and Megatron's own writer made. */
START_TEST(megatron)
{
    json_t *o = output(command_run("data tokenize --tokenizer " TOKENIZER " --append-eod --to out/bpe --json " INDEXED
                                   "/corpus.jsonl"));
    expect_same_file("out/bpe.bin", INDEXED "/bpe.bin");
    expect_same_file("out/bpe.idx", INDEXED "/bpe.idx");
    ck_assert_int_eq(number(o, "documents"), 46);
    json_decref(o);
    o = output(command_run("data inspect out/bpe --json"));
    ck_assert_int_eq(number(o, "documents"), 46);
    ck_assert_int_eq(number(o, "tokens"), 4133);
    ck_assert_str_eq(json_string_value(json_object_get(o, "dtype")), "uint16");
    ck_assert_int_eq(number(json_object_get(o, "lengths"), "min"), 0);
    ck_assert(strstr(json_string_value(json_object_get(o, "sample")), "One rank sends, the others wait.\nThen"));
    json_decref(o);
}
END_TEST

START_TEST(rearranged)
{
    json_t *o, *row;
    size_t i;
    json_int_t documents = 0, tokens = 0;
    command_run("data tokenize --tokenizer " TOKENIZER " --to all " INDEXED "/corpus.jsonl corpus.txt");
    o = output(command_run("data split all --validation 0.1 --test 3 --to part --json"));
    json_array_foreach(o, i, row)
    {
        documents += number(row, "documents");
        tokens += number(row, "tokens");
    }
    ck_assert(json_array_size(o) == 3 && documents == 47 && number(json_array_get(o, 1), "documents") == 5 &&
              number(json_array_get(o, 2), "documents") == 3);
    json_decref(o);
    /* Fractions that are 1 together leave none out. */
    for (int n = 10; n < 30; n++) {
        static const char *const words[] = {"--train 0.8 --validation 0.1 --test 0.1", "--train 0.5 --test 0.5"};
        struct hd__text lines = {0};
        for (int k = 0; k < n; k++)
            hd__text_add(&lines, "{\"text\": \"%d\"}\n", k);
        write_file("lines.jsonl", keep(lines.at));
        expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --overwrite --to lines lines.jsonl"), 0);
        for (size_t k = 0; k < HD__COUNT(words); k++) {
            struct command *c = command_run("data split lines --overwrite --to lines%zu --json %s", k, words[k]);
            ck_assert_str_eq(c->err, "");
            documents = 0;
            o = output(c);
            json_array_foreach(o, i, row) documents += number(row, "documents");
            ck_assert_int_eq(documents, n);
            json_decref(o);
        }
    }
    struct command *thrice = command_run("data merge part-test ./part-test.bin part-test.idx --to merged-thrice");
    expect_says(thrice, "part-test.bin is named more than once: so often");
    expect_says(thrice, "part-test.idx is named more than once: so often");
    const char *second = strstr(strstr(thrice->err, "more than once") + 1, "more than once");
    ck_assert_ptr_null(strstr(second + 1, "more than once"));
    expect_says(command_run("data tokenize --tokenizer " TOKENIZER " --field f --to fielded corpus.txt"),
                "warning: --field f has no effect: no file is of JSON lines");
    expect_says(command_run("data shuffle part-test --to ./part-test --overwrite"), "is what is read");
    expect_says(command_run("data merge part-train part-test --to ./part-test --overwrite"), "is what is read");
    o = output(command_run("data merge part-train part-validation part-test --to merged --json"));
    ck_assert_int_eq(number(json_array_get(o, 0), "tokens"), tokens);
    json_decref(o);
    json_decref(output(command_run("data shuffle all --to mixed --json")));
    json_decref(output(command_run("data shuffle all --to again --json")));
    json_decref(output(command_run("data shuffle all --to other --seed 2 --json")));
    expect_same_file("mixed.bin", "again.bin");
    ck_assert(system("cmp -s mixed.bin all.bin") && system("cmp -s mixed.bin other.bin"));
    static const char *const both[] = {"mixed", "merged"};
    for (size_t k = 0; k < HD__COUNT(both); k++) {
        o = output(command_run("data inspect %s --json", both[k]));
        ck_assert(number(o, "documents") == 47 && number(o, "tokens") == tokens);
        const json_t *sources = json_object_get(o, "sources"), *one = json_array_get(sources, 0),
                     *two = json_array_get(sources, 1);
        ck_assert_int_eq((int)json_array_size(sources), 2);
        ck_assert(number(one, "documents") == 46 && number(two, "documents") == 1);
        ck_assert_int_eq(number(one, "tokens") + number(two, "tokens"), tokens);
        json_decref(o);
    }
}
END_TEST

/* Names that are no UTF-8, and a document with a zero byte: all is printed, and JSON. */
START_TEST(odd_bytes)
{
    write_file("a\xff.jsonl", "{\"text\": \"One\\u0000two\"}\n{\"text\": \"three\"}\n");
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to odd a\xff.jsonl"), 0);
    json_t *o = output(command_run("data inspect odd --json"));
    json_t *sample = json_object_get(o, "sample");
    ck_assert(json_string_length(sample) == 7 && !memcmp(json_string_value(sample), "One\0two", 7));
    json_decref(o);
    struct command *c = command_run("data inspect odd");
    ck_assert_msg(strstr(c->out, "One?two"), "it printed:\n%s", c->out);
    ck_assert_int_eq(unlink("odd.meta.json"), 0);
    expect_code(command_run("data shuffle odd --to o\xff"), 0);
    o = output(command_run("data split o\xff --validation 1 --to p\xff --json"));
    ck_assert_int_eq((int)json_array_size(o), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(o, 0), "prefix")), "p\xef\xbf\xbd-train");
    json_decref(o);
    o = output(command_run("data inspect o\xff --json"));
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "sources")), 1);
    json_decref(o);
}
END_TEST

/* Killed while it writes, the same command goes on and writes the same bytes. */
START_TEST(killed)
{
    struct hd__text text = {0};
    for (int i = 0; i < 400000; i++)
        hd__text_add(&text, "{\"text\": \"line %d of a corpus that takes a while\"}\n", i);
    write_file("big.jsonl", keep(text.at));
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --threads 1 --to whole big.jsonl"), 0);
    for (int i = 1; i < 4; i++) {
        struct command *c =
            command_start(NULL, "data tokenize --tokenizer " TOKENIZER " --threads 1 --to parts big.jsonl");
        struct stat st;
        while (!waitid(P_PID, (id_t)c->pid, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) &&
               (stat("parts.bin.part", &st) || st.st_size < i << 20))
            usleep(1000);
        kill(c->pid, SIGKILL);
        command_wait(c, 10);
    }
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --threads 2 --to parts --overwrite big.jsonl"), 0);
    expect_same_file("whole.bin", "parts.bin");
    expect_same_file("whole.idx", "parts.idx");
}
END_TEST

START_TEST(mistakes)
{
    static const struct {
        const char *words, *says;
        int code;
    } rows[] = {
        {"data", "which of tokenize, inspect, split, shuffle, merge?", 2},
        {"data tokenise", "did you mean tokenize?", 2},
        {"data tokenize --to x corpus.txt", "--tokenizer FILE is missing", 2},
        {"data tokenize --tokenizer " TOKENIZER " corpus.txt", "--to PREFIX is missing", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x", "which files of text?", 2},
        {"data tokenize --tokenizer corpus.txt --to x corpus.txt", "corpus.txt: no tokenizer plug-in reads this file",
         2},
        {"data tokenize --tokenizer absent --to x corpus.txt",
         "absent: No such file or directory; a name on the hub? `hf download absent tokenizer.json --local-dir DIR`",
         2},
        {"data tokenize --tokenizer a.json --to x corpus.txt", "a.json: No such file or directory\n", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x absent.txt", "absent.txt: No such file or directory", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x https://h.example/a.jsonl",
         "https://h.example/a.jsonl: text is read of files, not of URLs: download it first", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to folder/ corpus.txt", "a folder: add the name", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --threads 0 corpus.txt", "wanted a whole number from 1 to 256",
         2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --feild y corpus.txt", "did you mean --field?", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --to y corpus.txt", "--to is given twice", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --eod <none> corpus.txt", "has no such token", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --chat-template none corpus.txt",
         "there are chatml, llama3, mistral, plain, and Jinja is not read", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --chat-template chatml corpus.txt", "lacks <|im_start|>", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to x --chat-template plain --eod a corpus.txt",
         "--eod has no effect with --chat-template plain, which has ends of its own: leave it out", 2},
        {"data tokenize --tokenizer " TOKENIZER " --to /proc/x corpus.txt", "/proc/x", 2},
        {"data inspect absent", "absent.idx: No such file or directory; name the PREFIX of a .bin and its .idx", 2},
        {"data inspect ids.npy", "ids.npy: has no ids.npy.idx beside it, which says where documents end", 2},
        {"data split one --to x --test 0.3", "--test 0.3: there is one document, and documents are not cut: make", 2},
        {"train llama.yaml --dry-run data.train=[0.7,\"a.bin\",0.3,\"b.bin\"]",
         "command line: data.train: 0.7 is no file: a share goes into {path: FILE, weight: 0.7}", 2},
        {"sample llama.yaml checkpoint={} --checkpoint " GOLDEN_DIR "/llama",
         GOLDEN_DIR " has no checkpoint llama: `heddle ckpt ls` lists them; it is a folder of Hugging Face's, whose",
         2},
        {"data inspect", "which PREFIX?", 2},
        {"data inspect " INDEXED "/bpe --document 46", "has 46", 2},
        {"data inspect " INDEXED "/bpe --tokenizer absent", "absent: No such file", 2},
        {"data split " INDEXED "/bpe --to x", "split needs --validation", 2},
        {"data split " INDEXED "/bpe --to x --validation 47", "and there are 46", 2},
        {"data split " INDEXED "/bpe --to x --validation 0.001", "of 46 documents that is none", 2},
        {"data split " INDEXED "/bpe --to x --test 1.5", "a fraction from 0 to 1 is wanted", 2},
        {"data shuffle " INDEXED "/bpe --to " INDEXED "/bpe --overwrite", "is what is read", 2},
        {"data merge " INDEXED "/bpe --to x", "merge takes two PREFIXes or more", 2},
        {"train " TEXT_JOB " model.vocab=319", "model.vocab: 319, and " TOKENIZER " has 320 ids: say model.vocab: 320",
         2},
        {"train " TEXT_JOB " data.format=bytes", "data.format: with data.tokenizer the files are text", 2},
        {"train " TEXT_JOB " data.token_dtype=uint32 --dry-run",
         "data.token_dtype: what is made of text says its type itself: leave it out", 2},
        {"train " TEXT_JOB " data.loss=completion --dry-run",
         "data.loss: completion counts what data.chat_template says of text: set that, or say all", 2},
        {"train " TEXT_JOB " data.chat_template=plain --dry-run",
         "data.train: corpus.txt: is no file of JSON lines, and a chat template is for these alone", 2},
        {"train " TEXT_JOB " --dry-run data.train=" INDEXED "/bpe.idx",
         "data.train: " INDEXED "/bpe.idx: is a Megatron index: tokens need no tokenizer: name the .bin", 2},
        {"train " TEXT_JOB " --dry-run data.val_fraction=0 data.val=" INDEXED "/bytes.idx",
         "data.val: " INDEXED "/bytes.idx: is a Megatron index", 2},
        {"train " TEXT_JOB " --dry-run data.train=binary", "data.train: binary: is no text: its byte 4 is zero", 2},
        {"train " TEXT_JOB " --dry-run data.train=latin1",
         "data.train: latin1: is not UTF-8: its byte 0 is 0xe9: convert it", 2},
        {"train " TEXT_JOB " --dry-run data.train=content.jsonl",
         "data.train: content.jsonl:1: has no field \"text\"; --field names another (data.field in a job)", 2},
        {"train " TEXT_JOB " data.cache=corpus.txt --dry-run", "data.cache: corpus.txt: Not a directory", 2},
        {"train " TEXT_JOB " data.cache=corpus.txt", "data.cache: corpus.txt: Not a directory", 2},
        {"train " TEXT_JOB " data.tokenizer=absent", "data.tokenizer: absent: No such file", 2},
        {"train " TEXT_JOB " data.train=none*.txt", "data.train: none*.txt: no file matches this pattern", 2},
        {"train " TEXT_JOB " data.cache=/proc/tokens", "/proc/tokens", 2},
        {"train " TEXT_JOB " data.tokenizer=endless.json data.append_eod=true",
         "data.append_eod: endless.json names no token that ends a document: say which by `heddle data tokenize --eod "
         "TOKEN`, and name its tokens in data.train",
         2},
        {"train " TEXT_JOB " data.chat_template=chatml", "data.chat_template: " TOKENIZER ": its vocabulary lacks", 2},
        {"train llama.yaml model.vocab=320 data.train=corp*.txt",
         "is read as text, and text needs a tokenizer: set data.tokenizer", 2},
    };
    ck_assert(!system("printf 'abcd\\0efgh' > binary && printf '\\351t\\351\n' > latin1 && "
                      "echo '{\"content\": \"a\"}' > content.jsonl && "
                      "sed 's/<|endoftext|>/<|last|>/g' " TOKENIZER " > endless.json && touch ids.npy"));
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to one corpus.txt"), 0);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i].words);
        ck_assert_msg(c->code == rows[i].code && strstr(c->err, rows[i].says), "%s: exit code %d, %s", rows[i].words,
                      c->code, c->err);
    }
    ck_assert(access("x.bin", F_OK) && access("runs/tokens", F_OK));
}
END_TEST

/* Documents that a command leaves out, or writes twice, are reported. */
START_TEST(said)
{
    struct command *c = command_run("data split " INDEXED "/bpe --to most --train 0.5");
    expect_code(c, 0);
    expect_says(c, "23 of 46 documents are in no part: without --train it is all that");
    c = command_run("data split " INDEXED "/bpe --to all --validation 6 --train 40");
    expect_code(c, 0);
    ck_assert_str_eq(c->err, "");
    c = command_run("data split " INDEXED "/bpe --to all --validation 20 --test 26 --overwrite");
    expect_code(c, 2);
    expect_says(c, "all-train.bin is left from an older split, and this split has no documents for it: remove it");
    ck_assert_int_eq(system("mkdir web && cp corpus.txt web"), 0); /* tokens among the texts are none of them */
    for (int again = 0; again < 2; again++)
        expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to web/all --overwrite web"), 0);
    c = command_run("data split " INDEXED "/bpe --to held --validation 1.0 --test 0");
    expect_code(c, 0);
    expect_says(c, "held-train: no documents are left for this part: it is not written");
    expect_says(c, "held-test: no documents are left for this part: it is not written");
    c = command_run("data tokenize --tokenizer " TOKENIZER " --to twice corpus.txt corpus.txt");
    expect_code(c, 0);
    expect_says(c, "corpus.txt is named more than once: so often its documents are written");
    c = command_run("data tokenize --tokenizer " TOKENIZER " --to once corpus.txt");
    ck_assert_msg(!strstr(c->err, "more than once"), "it said: %s", c->err);
    write_file("empty.jsonl", "");
    c = command_run("data tokenize --tokenizer " TOKENIZER " --to none --skip-bad --field none " INDEXED
                    "/corpus.jsonl");
    expect_code(c, 1);
    expect_says(c, "none has no documents: 46 could not be read (--skip-bad, --field none)");
    ck_assert_str_eq(c->out, "");
    expect_says(command_run("data tokenize --tokenizer " TOKENIZER " --to none empty.jsonl"), "none has no documents");
    expect_says(command_run("train llama.yaml model.vocab=320 data.tokenizer=" TOKENIZER " data.train=empty.jsonl"),
                "command line: data.train: empty.jsonl: has no token in 0 documents: name files with text");
    ck_assert_int_eq(system("! ls none* 2>/dev/null"), 0); /* so the call that is right needs no --overwrite */
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to none " INDEXED "/corpus.jsonl"), 0);
    ck_assert_int_eq(system("cp none.bin before.bin"), 0);
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER
                            " --to none --skip-bad --field none --overwrite " INDEXED "/corpus.jsonl"),
                1);
    ck_assert_int_eq(system("cmp none.bin before.bin && ! ls none.*part none.progress 2>/dev/null"), 0);
}
END_TEST

/* Tokens of one tokenizer, and a job that names another one. */
START_TEST(other_tokenizer)
{
    static const char *const jobs[][2] = {
        {"train", "data.train=mine.bin"},
        {"train --dry-run", "data.train=mine.bin"},
        {"train", "data.train=corpus.txt data.val=mine.bin"},
    };
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to mine corpus.txt"), 0);
    ck_assert(!system("sed 's/<|endoftext|>/<|end|>/g' " TOKENIZER " > other.json"));
    for (size_t i = 0; i < HD__COUNT(jobs); i++) {
        struct command *c =
            command_run("%s llama.yaml model.vocab=320 data.tokenizer=other.json %s", jobs[i][0], jobs[i][1]);
        expect_code(c, 2);
        expect_says(c, "command line: data.tokenizer: other.json is not what made the tokens of data.");
        expect_says(c, "mine.bin: that was " TOKENIZER);
    }
    expect_code(command_run("train llama.yaml model.vocab=320 data.tokenizer=" TOKENIZER " data.train=mine.bin"), 0);
    const char *saved = "llama.yaml model.vocab=320 data.train=mine.bin checkpoint.dir=saved";
    expect_code(command_run("train %s job.steps=1", saved), 0);
    expect_code(command_run("ckpt export %s --to from", saved), 0);
    for (int k = 0; k < 2; k++) { /* its own tokenizer, and another one */
        ck_assert(!system(k ? "cp other.json from/tokenizer.json" : "cp " TOKENIZER " from/tokenizer.json"));
        struct command *f = command_run("train llama.yaml model={\"use\":\"transformer\",\"from\":\"from\"} "
                                        "data.train=mine.bin --dry-run");
        expect_code(f, 0);
        ck_assert_msg(!strstr(f->err, "model.from: the tokenizer of from is not what made") == !k, "%s", f->err);
    }
    struct command *c = command_run("data inspect mine --tokenizer other.json");
    expect_code(c, 0);
    expect_says(c, "other.json is not what made the tokens of mine: that was " TOKENIZER);
    c = command_run("sample llama.yaml --random-weights --tokenizer " TOKENIZER " --prompt x");
    expect_code(c, 2);
    expect_says(c, TOKENIZER " has 320 ids, and the model's vocabulary is 256");
}
END_TEST

/* The job's own tokenizer, trained again under its name. */
START_TEST(tokenizer_has_changed)
{
#define OWN "llama.yaml model.vocab=320 data.tokenizer=own.json checkpoint.dir=own "
    static const struct {
        const char *words, *says;
        int code;
    } rows[] = {
        {"train " OWN "data.train=own.bin",
         "data.tokenizer: own.json has changed since it made the tokens of data.train", 2},
        {"train " OWN "data.train=corpus.txt job.name=own job.steps=2 --dry-run", "the tokens are of own.json (", 0},
        {"data inspect own", "warning: own.json has changed since it made the tokens of own: restore it, or ", 0},
        {"ckpt export " OWN "data.train=own.bin --to exported", "own.json has changed since step 1 was trained on", 2},
    };
    struct curve curve;
    ck_assert(!system("cp " TOKENIZER " own.json"));
    expect_code(command_run("data tokenize --tokenizer own.json --to own corpus.txt"), 0);
    train(&curve, "own", OWN "data.train=own.bin job.steps=1");
    ck_assert(!system("sed -i 's/<|endoftext|>/<|end|>/g' own.json"));
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s", rows[i].words);
        expect_code(c, rows[i].code);
        expect_says(c, rows[i].says);
    }
}
END_TEST

static void make_two_tokenizers(void)
{
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --to mine corpus.txt --overwrite"), 0);
    ck_assert(!system("sed 's/<|endoftext|>/<|end|>/g' " TOKENIZER " > other.json"));
    expect_code(command_run("data tokenize --tokenizer other.json --to theirs corpus.txt --overwrite"), 0);
}

/* Nothing names a tokenizer, and the files are of two. */
START_TEST(two_tokenizers)
{
    static const char *const rows[][2] = {
        {"train %s --dry-run data.train=[\"mine.bin\",\"theirs.bin\"]", "data.train: the tokens of theirs.bin are by"},
        {"train %s --dry-run data.train=mine.bin data.val=theirs.bin", "data.val: the tokens of theirs.bin are by"},
        {"train %s --dry-run data.train=mine.bin data.val={\"a\":\"mine.bin\",\"b\":\"theirs.bin\"}",
         "data.val: the tokens of theirs.bin are by"},
        {"train %s --dry-run data.train=mine.bin data.test=theirs.bin", "data.test: the tokens of theirs.bin are by"},
        {"eval %s --random-weights data.train=mine.bin data.val=theirs.bin", "data.val: the tokens of theirs.bin are"},
        {"eval %s --random-weights data.train=mine.bin data.test=theirs.bin --split test",
         "data.test: the tokens of theirs.bin are"},
        {"eval %s --random-weights data.train=mine.bin data.val=theirs.bin data.tokenizer=" TOKENIZER,
         "is not what made the tokens of data.val, theirs.bin: that was other.json"},
    };
    make_two_tokenizers();
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        char words[256];
        snprintf(words, sizeof words, rows[i][0], "llama.yaml model.vocab=320");
        struct command *c = command_run("%s", words);
        expect_code(c, 2);
        expect_says(c, rows[i][1]);
    }
    expect_code(command_run("train llama.yaml model.vocab=320 --dry-run data.train=[\"mine.bin\",\"mine.bin\"]"), 0);
    write_file("theirs.meta.json", "{\"documents\": 1, \"tok");
    struct command *c =
        command_run("train llama.yaml model.vocab=320 --dry-run data.train=[\"mine.bin\",\"theirs.bin\"]");
    expect_code(c, 0);
    expect_says(c, "warning: theirs.meta.json: premature end of input near '\"tok': so it is not known which tokenizer "
                   "made the tokens: write them again, or remove it");
}
END_TEST

/* The weights and what they are given next know the same tokenizer. */
START_TEST(tokenizer_of_a_checkpoint)
{
#define SAVED "llama.yaml model.vocab=320 checkpoint.dir=known data.train=corpus.txt "
#define FROM "llama.yaml model={\"use\":\"transformer\",\"from\":\"known-model\"} "
    static const char *const copied[] = {"tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"};
    static const char *const words[] = {
        "eval " SAVED "data.tokenizer=other.json data.val=theirs.bin eval.batches=1",
        "sample " SAVED "data.tokenizer=other.json --prompt the --tokens 2",
        "sample " SAVED "data.tokenizer=" TOKENIZER " --tokenizer other.json --prompt the --tokens 2",
        "train " SAVED "data.tokenizer=other.json job.name=known job.steps=3",
    };
    struct curve curve;
    struct command *c;
    make_two_tokenizers();
    train(&curve, "known", SAVED "data.tokenizer=" TOKENIZER " job.steps=2");
    c = command_run("ckpt export " SAVED "data.tokenizer=other.json --to wrong");
    expect_code(c, 2);
    expect_says(c, "command line: step 2 was trained on tokens of " TOKENIZER ", and the export would have another "
                   "tokenizer, other.json: say data.tokenizer: " TOKENIZER);
    ck_assert(access("wrong/tokenizer.json", F_OK) && access("wrong/config.json", F_OK));
    expect_code(command_run("ckpt export " SAVED "data.tokenizer=" TOKENIZER " --to known-model"), 0);
    expect_code(command_run("train llama.yaml checkpoint.dir=letters job.name=letters job.steps=1"), 0);
    c = command_run("ckpt export llama.yaml checkpoint.dir=letters data.tokenizer=" TOKENIZER " --to wrong");
    expect_code(c, 2);
    expect_says(c,
                "command line: data.tokenizer: " TOKENIZER " has 320 ids, and the model's vocabulary is 256: name the "
                "tokenizer that it was trained with, or leave it out");
    ck_assert_int_ne(access("wrong/config.json", F_OK), 0);
    ck_assert(!system("cp " TOKENIZER " same.json")); /* its path does not count */
    c = command_run("sample " SAVED "data.tokenizer=same.json --prompt the --tokens 2");
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "the tokens are of"), "%s", c->err);
    for (size_t i = 0; i < HD__COUNT(words); i++) {
        c = command_run("%s", words[i]);
        expect_code(c, 0);
        expect_says(c, "command line: the tokens are of other.json (");
        expect_says(c, ") and were of " TOKENIZER " (");
    }
    ck_assert(
        !system("sed 's/\"added_tokens\":\\[/&{\"id\":320,\"content\":\"<|im_end|>\",\"special\":true},/' " TOKENIZER
                " > larger.json"));
    c = command_run("train " FROM "--dry-run data.train=corpus.txt data.tokenizer=larger.json");
    expect_code(c, 2);
    expect_says(c,
                "data.tokenizer: larger.json has 321 ids, and the model of known-model has rows for 320: enlarge it in "
                "transformers (resize_token_embeddings, save_pretrained), or take its own tokenizer");
    /* The folder has a tokenizer of its own. */
    c = command_run("train " FROM "--dry-run data.train=corpus.txt data.tokenizer=" TOKENIZER);
    expect_code(c, 0);
    ck_assert_msg(!strstr(c->err, "model.from"), "%s", c->err);
    c = command_run("train " FROM "--dry-run data.train=corpus.txt data.format=bytes");
    expect_code(c, 0);
    expect_says(c, "model.from: known-model has a tokenizer, and corpus.txt is read as bytes, without it: where the ");
    for (size_t i = 0; i < HD__COUNT(copied); i++)
        write_file(keep(hd__format("known-model/%s", copied[i])), "{}");
    train(&curve, "tuned", FROM "checkpoint.dir=tuned data.train=corpus.txt data.tokenizer=other.json job.steps=1");
    c = command_run("train " FROM "--dry-run data.train=corpus.txt data.tokenizer=other.json");
    expect_says(c, "model.from: the tokenizer of known-model is another one than data.tokenizer, other.json: where");
    expect_code(command_run("ckpt export " FROM "checkpoint.dir=tuned data.tokenizer=other.json --to tuned-model"), 0);
    ck_assert(!system("cmp other.json tuned-model/tokenizer.json"));
    for (size_t i = 0; i < HD__COUNT(copied); i++)
        ck_assert_msg(access(keep(hd__format("tuned-model/%s", copied[i])), F_OK), "%s", copied[i]);
    c = command_run("ckpt export " FROM "checkpoint.dir=tuned --to wrong");
    expect_code(c, 2);
    expect_says(c, "step 1 was trained on tokens of other.json, and the export would have another tokenizer");
}
END_TEST

static void expect_ends(const char *file, const char *want)
{
    json_t *root = json_load_file(file, 0, NULL);
    char *is = keep(json_dumps(root, JSON_COMPACT));
    ck_assert_str_eq(is, want);
    json_decref(root);
}

/* The tokens say by which template: transformers stops where its answers end, and has a template that begins so. */
START_TEST(export_of_conversations)
{
#define QWEN GOLDEN_DIR "/tokenizer/qwen2.json"
#define TALK "checkpoint.dir=%s data.train=talk.bin data.loss=completion "
    static const char *const templates[] = {"\"[INST]\"", "[{\"name\": \"default\", \"template\": \"<|im_start|>\"}]"};
    char text[8192] = "";
    while (strlen(text) < sizeof text - 256)
        strcat(text,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"And the evening\"}, {\"role\": \"assistant\", "
               "\"content\": \"and the morning were the first day\"}]}\n");
    write_file("talk.jsonl", text);
    expect_code(command_run("data tokenize --tokenizer " QWEN " --chat-template chatml --to talk talk.jsonl"), 0);
    const char *first = "llama.yaml model.vocab=1024 data.tokenizer=" QWEN " " TALK,
               *second = "llama.yaml model={\"use\":\"transformer\",\"from\":\"talk-model\"} " TALK;
    char words[512];
    snprintf(words, sizeof words, first, "talk");
    expect_code(command_run("train %s job.steps=1", words), 0);
    expect_code(command_run("ckpt export %s --to talk-model", words), 0);
    expect_ends("talk-model/generation_config.json", "{\"eos_token_id\":[0,2]}");
    ck_assert(!system("cmp " QWEN " talk-model/tokenizer.json"));
    write_file("talk-model/generation_config.json", "{\"eos_token_id\": 7, \"top_k\": 5}");
    snprintf(words, sizeof words, second, "tuned-talk");
    expect_code(command_run("train %s job.name=tuned-talk job.steps=1", words), 0);
    for (int k = 0; k < 2; k++) {
        write_file("talk-model/tokenizer_config.json", keep(hd__format("{\"chat_template\": %s}", templates[k])));
        struct command *c = command_run("ckpt export %s --to talk-%d", words, k);
        expect_code(c, 0);
        expect_ends(k ? "talk-1/generation_config.json" : "talk-0/generation_config.json",
                    "{\"eos_token_id\":[7,2],\"top_k\":5}");
        int said = strstr(c->err, "warning: talk-0/tokenizer_config.json: its chat_template, like that of talk-model/"
                                  "tokenizer_config.json, lacks <|im_start|>, which begins each turn in") != NULL;
        ck_assert_msg(said == !k && (k == 0 || !strstr(c->err, "chat_template")), "%s", c->err);
        for (int samples = 0; samples < 2; samples++) {
            c = samples ? command_run("sample llama.yaml model={\"use\":\"transformer\",\"from\":\"talk-model\"} "
                                      "--chat chatml --prompt a --max-new 1")
                        : command_run("train %s job.name=tuned-talk --dry-run", words);
            said = strstr(c->err, "starts turns differently") != NULL;
            ck_assert_msg(!c->code && said == !k, "%s", c->err);
        }
    }
    write_file("talk-model/generation_config.json", "{\"eos_token_id\": 50256}");
    expect_says(
        command_run("ckpt export %s --to talk-2", words),
        "warning: talk-2/generation_config.json: eos_token_id has 50256, and the vocabulary is of 1024: no text ");
}
END_TEST

/* Prompts and completions that are hardly meant so. */
START_TEST(completions)
{
#define PLAIN "train " TEXT_JOB " data.val_fraction=0 data.train=c.jsonl data.chat_template=plain data.seq_len=8 "
    write_file("c.jsonl", "{\"prompt\": \"How much is one and one?\", \"completion\": \"It is two.<|endoftext|>\"}\n"
                          "{\"prompt\": \"How much is two and two?\", \"completion\": \"It is four.\"}\n");
    struct command *c = command_run(PLAIN "job.steps=1 data.loss=completion data.documents=pack");
    expect_code(c, 0);
    expect_says(
        c, "warning: c.jsonl: 1 of 2 documents have the text of <|endoftext|> in a content, as letters: if the token "
           "is meant, leave it to the template");
    expect_says(c,
                "command line: data.seq_len: all 2 documents are longer and cut: completions do not see their prompts");
    ck_assert_msg(!strstr(c->err, "data.loss is not"), "%s", c->err);
    c = command_run(PLAIN "job.steps=1 data.loss=completion data.documents=mask");
    expect_says(c, "data.seq_len: the first 2 documents are longer and cut: completions do not see their prompts");
    c = command_run(PLAIN "job.steps=1 data.batch=1 data.micro_batch=1 data.seq_len=40 data.loss=completion");
    ck_assert_msg(!c->code && !strstr(c->err, "do not see"), "%s", c->err);
    c = command_run(PLAIN "job.steps=1");
    expect_says(c, "command line: data.chat_template is set and data.loss is not, so prompts are trained, too");
    c = command_run("train llama.yaml model.vocab=320 --dry-run data.train=" INDEXED
                    "/bpe.bin data.chat_template=plain "
                    "data.tokenizer=" TOKENIZER);
    expect_says(c, "data.chat_template has no effect, because nothing is tokenized");
    ck_assert_msg(!strstr(c->err, "data.loss is not"), "%s", c->err);
    expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --chat-template plain --to marked c.jsonl"), 0);
    c = command_run("train llama.yaml model.vocab=320 --dry-run data.seq_len=8 data.train=marked.bin");
    expect_says(
        c, "command line: data.train: marked.loss marks what is to be learnt, and data.loss is not set, so prompts "
           "are trained, too: say data.loss=completion, or all");
    c = command_run("train llama.yaml model.vocab=320 --dry-run data.seq_len=8 data.train=marked.bin data.loss=all");
    ck_assert_msg(!strstr(c->err, "data.loss is not"), "%s", c->err);
}
END_TEST

/* A job on text trains as one on its tokens, which are written once, whatever reads them next. */
START_TEST(job)
{
    struct curve text, tokens;
    struct stat first, second;
    mkdir("some", 0777);
    expect_code(command_run("check " TEXT_JOB), 0);
    ck_assert(access("runs/tokens", F_OK));
    struct command *c = command_run("train " TEXT_JOB " --dry-run");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "would be tokenized by " TOKENIZER " into runs/tokens/corpus-"), "%s", c->out);
    ck_assert(access("runs/tokens", F_OK));
    train(&text, "text", TEXT_JOB " data.cache=some/tokens");
    ck_assert(!system("cp some/tokens/corpus-*.bin t.bin && cp some/tokens/corpus-*.idx t.idx"));
    train(&tokens, "tokens", "llama.yaml model.vocab=320 data.val_fraction=0.1 data.train=t.bin");
    expect_same_bits(&text, &tokens);
    ck_assert(!stat("some/tokens", &first));
    train(&tokens, "text2", TEXT_JOB " data.cache=some/tokens mesh.dp=2 data.train=corpus.tx[t]");
    train(&tokens, "text3", TEXT_JOB " data.cache=some/tokens mesh.dp=2");
    ck_assert(!stat("some/tokens", &second) && second.st_mtim.tv_sec >= first.st_mtim.tv_sec);
    expect_close(&text, &tokens, 1e-4);
    c = command_run("eval " TEXT_JOB " data.cache=elsewhere --random-weights");
    expect_code(c, 0);
    ck_assert(!access("elsewhere", F_OK));
}
END_TEST

/* Conversations in a job: what the loss counts comes with their tokens. */
START_TEST(conversations)
{
    struct hd__text lines = {0};
    struct curve answers, all;
    for (int i = 0; i < 300; i++)
        hd__text_add(&lines, "{\"prompt\": \"what is %d + %d?\", \"completion\": \" it is %d\"}\n", i, i, 2 * i);
    write_file("sft.jsonl", keep(lines.at));
    train(&answers, "answers",
          TEXT_JOB " data.train=sft.jsonl data.chat_template=plain data.loss=completion checkpoint.dir=answers");
    train(&all, "all", TEXT_JOB " data.train=sft.jsonl data.chat_template=plain");
    ck_assert(answers.loss[0] != all.loss[0]);
    struct command *c = command_run("train " TEXT_JOB " data.train=sft.jsonl");
    expect_code(c, 2);
    expect_says(c, "sft.jsonl:1: has no field \"text\", but a conversation");
    for (int same = 0; same < 2; same++) {
        c = command_run("eval " TEXT_JOB " data.train=sft.jsonl data.chat_template=plain checkpoint.dir=answers "
                        "eval.batches=1 data.loss=%s",
                        same ? "completion" : "all");
        int differs = strstr(c->err, "command line: data.loss is all and was completion when checkpoint step-00000020 "
                                     "was saved: its loss counted other tokens than this one") != NULL,
            counts = strstr(c->err, " tokens count in the loss") != NULL;
        ck_assert_msg(!c->code && differs == !same && counts == same, "%s", c->err);
    }
    c = command_run("eval " TEXT_JOB " data.train=sft.jsonl data.chat_template=plain data.append_eod=false "
                    "data.loss=completion checkpoint.dir=answers eval.batches=1");
    expect_says(c, "command line: data.append_eod is false and was auto when checkpoint step-00000020 was saved: this "
                   "loss and those of its run are not comparable");
    c = command_run("train " TEXT_JOB " data.train=sft.jsonl data.field=prompt data.loss=completion");
    expect_code(c, 2);
    expect_says(c, ".loss");
    ck_assert_int_eq(system("sed '100,$s/ it is [0-9]*//' sft.jsonl > mute.jsonl"), 0);
    expect_says(command_run("data tokenize --tokenizer " TOKENIZER " --chat-template plain --to mute mute.jsonl"),
                "warning: mute.jsonl: 201 of 300 documents have no answer but the token that ends one");
    c = command_run("data tokenize --tokenizer " TOKENIZER " --chat-template plain --to sft sft.jsonl");
    ck_assert_msg(!c->code && !strstr(c->err, "warning"), "%s", c->err);
}
END_TEST

/* Files know what they were made of: no other draw, order or mix of it is held out; a new draw gives other parts. */
START_TEST(parts_of_one_file)
{
#define PARTS \
    "llama.yaml model.vocab=320 data.train=drawn-train.bin data.val=drawn-validation.bin checkpoint.dir=parts "
#define WHOLE "one has what the other was split off, not the rest of it"
    static const char *const made[] = {"split " INDEXED "/bpe --validation 0.2 --to drawn",
                                       "split " INDEXED "/bpe --validation 0.2 --seed 2 --to seeded",
                                       "split " INDEXED "/bpe --train 0.5 --to half",
                                       "split drawn-train --validation 0.2 --to twice",
                                       "shuffle " INDEXED "/bpe --to stirred",
                                       "shuffle drawn-train --to stirred-train",
                                       "merge drawn-train twice-train --to blend"};
    static const struct {
        const char *train, *val, *why; /* NULL: apart */
    } rows[] = {{INDEXED "/bpe", "drawn-validation", WHOLE},
                {"drawn-train", INDEXED "/bpe", WHOLE},
                {"twice-train", "drawn-train", WHOLE},
                {"stirred", "drawn-validation", WHOLE},
                {"drawn-train", "seeded-validation", "they are parts of two splits of one file"},
                {"stirred", INDEXED "/bpe", "both were made of one file"},
                {INDEXED "/bpe", "stirred", "both were made of one file"},
                {"blend", "stirred-train", "both were made of one file"},
                {"blend", "twice-validation", WHOLE},
                {"blend", "drawn-validation", NULL},
                {"stirred-train", "drawn-validation", NULL},
                {"twice-train", "twice-validation", NULL},
                {"twice-train", "drawn-validation", NULL},
                {"half-train", "drawn-validation", NULL}};
    struct command *c;
    for (size_t i = 0; i < HD__COUNT(made); i++)
        expect_code(command_run("data %s", made[i]), 0);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const char *train = rows[i].train, *val = rows[i].val, *why = rows[i].why;
        c = command_run("%s data.train=%s.bin data.val=%s.bin eval.batches=1",
                        i % 2 ? "eval llama.yaml --random-weights model.vocab=320"
                              : "train llama.yaml --dry-run model.vocab=320 eval.every=2",
                        train, val);
        const char *want = keep(hd__format("warning: command line: data.val: %s.bin and %s.bin of data.train have "
                                           "documents in common, because %s: it is not held out",
                                           val, train, why ? why : ""));
        ck_assert_msg(why ? strstr(c->err, want) != NULL : !strstr(c->err, "in common"), "%s, %s: %s", train, val,
                      c->err);
    }
    expect_says(command_run("train llama.yaml --dry-run model.vocab=320 data.train=[\"" INDEXED
                            "/bpe.bin\",\"drawn-train.bin\"]"),
                "warning: command line: data.train: drawn-train.bin and " INDEXED
                "/bpe.bin have documents in common, because " WHOLE ": they are read twice an epoch");
    c = command_run("train " PARTS "job.steps=2 eval.every=2 eval.batches=1");
    ck_assert_msg(!c->code && !strstr(c->err, "in common"), "%s", c->err);
    c = command_run("eval " PARTS "eval.batches=1");
    ck_assert_msg(!c->code && !strstr(c->err, "is not what it was"), "%s", c->err);
    expect_code(command_run("data split " INDEXED "/bpe --validation 0.2 --seed 5 --overwrite --to drawn"), 0);
    c = command_run("eval " PARTS "eval.batches=1");
    expect_says(c, "command line: data.train is not what it was when checkpoint step-00000002 was saved: it is ");
    expect_says(c, ": what is evaluated here may have been trained on");
    for (int grown = 0; grown < 2; grown++) {
        ck_assert_int_eq(system(grown ? "tac grow.jsonl > more && cat more >> grow.jsonl"
                                      : "sed 's/[^a-zA-Z ]//g; s/.*/{\"text\": \"&\"}/' corpus.txt > grow.jsonl"),
                         0);
        expect_code(command_run("data tokenize --tokenizer " TOKENIZER " --overwrite --to grow grow.jsonl"), 0);
        if (!grown)
            expect_code(command_run("data split grow --validation 0.2 --to grow"), 0);
        c = command_run("train llama.yaml --dry-run model.vocab=320 data.train=grow-train.bin");
        ck_assert_msg(!c->code &&
                          !strstr(c->err, "/grow.bin was written anew since this file was made of it") == !grown,
                      "%s", c->err);
    }
    ck_assert_int_eq(
        system("for x in bin idx meta.json; do mv grow-train.$x grow.$x; done; "
               "sed -i 's|\"inputs\": {|&\"/etc/passwd\": 1,|' grow.meta.json; grep -q /etc/passwd grow.meta.json"),
        0);
    c = command_run("train llama.yaml --dry-run model.vocab=320 data.train=grow.bin"); /* by its input's name */
    ck_assert_msg(!c->code && !strstr(c->err, "written anew"), "%s", c->err);
}
END_TEST

/* Ranks of another launcher meet first; one of each machine tokenizes, into the machine's own cache, and the others
 * wait for it. */
START_TEST(ranks)
{
    struct command *c[4];
    int machines = 1;
    const char *transport = "plugins.path=" PIPES " comm.use=pipes";
#ifdef FABRIC
    machines = 2;
    transport = "comm.use=libfabric";
#endif
    for (int again = 0; again < 2; again++) {
        int port = free_port();
        for (int rank = 3; rank >= 0; rank--)
            c[rank] = command_start_rank(rank, 4, 4 / machines, port,
                                         "train " TEXT_JOB " job.steps=2 mesh.dp=4 data.cache=m%d %s",
                                         rank * machines / 4, transport);
        for (int rank = 0; rank < 4; rank++) {
            command_wait(c[rank], 60);
            expect_code(c[rank], 0);
            ck_assert_msg(!strstr(c[rank]->err, " documents, ") == (again || rank % (4 / machines) != 0), "rank %d: %s",
                          rank, c[rank]->err);
        }
        /* The same text at another time is no other: those that hash it note that. */
        ck_assert(!system(again ? "grep -q '\"mtime\": 1000000000000,' m0/*.json" : "touch -d @1000 corpus.txt"));
    }
    ck_assert(machines == 1 || !system("cmp -s m0/corpus-*.bin m1/corpus-*.bin"));
}
END_TEST

#ifdef FABRIC

/* Rank 0 waits for rank 1 in this transport: one that it refuses between machines could end the job before rank 1 has
 * compared its tokens. */
#define ON_TWO "train llama.yaml job.steps=2 mesh.dp=2 comm.use=libfabric model.vocab=320 data.tokenizer=" TOKENIZER " "

START_TEST(other_text)
{
    struct command *c[2];
    int port = free_port();
    mkdir("in0", 0777);
    mkdir("in1", 0777);
    ck_assert(!system("cp corpus.txt in0/a.txt && tr e o < corpus.txt > in1/a.txt"));
    for (int rank = 1; rank >= 0; rank--)
        c[rank] = command_start_rank(rank, 2, 1, port, ON_TWO "data.train=in%d/*.txt data.cache=n%d", rank, rank);
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 2);
    }
    expect_says(c[1], "rank 1 has other tokens than rank 0: all machines need the same text");
}
END_TEST

/* A machine that has some of the tokens from before finds them in another order than one that makes all: they are the
 * same for all that. */
START_TEST(found_in_another_order)
{
    struct command *c[2];
    int port = free_port();
    ck_assert(!system("tail -c 3000 corpus.txt > held.txt"));
    expect_code(command_run("train " TEXT_JOB " job.steps=1 data.train=held.txt data.cache=o0"), 0);
    for (int rank = 1; rank >= 0; rank--)
        c[rank] = command_start_rank(rank, 2, 1, port, ON_TWO "eval.every=2 data.val=held.txt data.cache=o%d", rank);
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
}
END_TEST

#endif

int main(void)
{
    const struct system_test tests[] = {{"megatron", megatron, 0},
                                        {"rearranged", rearranged, 0},
                                        {"odd-bytes", odd_bytes, 0},
                                        {"killed", killed, 0},
                                        {"mistakes", mistakes, 0},
                                        {"job", job, 0},
                                        {"other-tokenizer", other_tokenizer, 0},
                                        {"tokenizer-has-changed", tokenizer_has_changed, 0},
                                        {"two-tokenizers", two_tokenizers, 0},
                                        {"tokenizer-of-a-checkpoint", tokenizer_of_a_checkpoint, 0},
                                        {"conversations", conversations, 0},
                                        {"export-of-conversations", export_of_conversations, 0},
                                        {"parts of one file", parts_of_one_file, 0},
                                        {"ranks", ranks, 0},
#ifdef FABRIC
                                        {"other-text", other_text, 0},
                                        {"found-in-another-order", found_in_another_order, 0},
#endif
                                        {"said", said, 0},
                                        {"completions", completions, 0},
                                        {NULL, NULL, 0}};
    return system_run("data", tests);
}
