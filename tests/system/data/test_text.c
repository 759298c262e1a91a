/* Text in and out of a trained model: sample, eval of single tokens and of requests, and what an export takes along. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/dtype.h"
#include "service/checkpoint/safetensors.h"
#include "system.h"

static struct curve curve;

#define BYTES "plugins.path=" PLUGINS_OF_TESTS " model.vocab=300 data.format=bytes checkpoint.dir=text "
#define SAMPLE "sample llama.yaml " BYTES "--tokenizer tok --use bytes --prompt the --temperature 0 "

static void make_model(void)
{
    write_file("tok", "bytes");
    train(&curve, "text", "llama.yaml job.steps=60 optimizer.lr=3e-3 " BYTES);
}

static json_t *object(const char *text)
{
    json_error_t why;
    json_t *o = json_loads(text, JSON_DISABLE_EOF_CHECK, &why);
    ck_assert_msg(o != NULL, "%s: %s", why.text, text);
    return o;
}

static json_t *sampled(const char *flags)
{
    struct command *c = command_run(SAMPLE "--json %s", flags);
    expect_code(c, 0);
    return object(c->out);
}

static const char *text_of(const json_t *o)
{
    return json_string_value(json_object_get(o, "text"));
}

START_TEST(samples_text)
{
    make_model();
    json_t *whole = sampled("--max-new 20"), *ids = json_object_get(whole, "ids"), *part;
    struct command *plain = command_run(SAMPLE "--max-new 20"), *two;
    char *stop;
    ck_assert_int_eq((int)json_array_size(ids), 20);
    ck_assert_str_eq(plain->out, keep(hd__format("the%s\n", text_of(whole))));
    ck_assert_str_eq(json_string_value(json_object_get(whole, "finish")), "length");
    /* The same ids where it ends sooner, by a text over two tokens or by an id; its text is not printed. */
    stop = keep(hd__format("--max-new 20 --stop %.2s", text_of(whole) + 8));
    if (!strchr(stop + 20, ' ')) {
        part = sampled(stop);
        ck_assert_str_eq(json_string_value(json_object_get(part, "finish")), "stop");
        ck_assert_int_le((int)json_array_size(json_object_get(part, "ids")), 10);
        ck_assert(!strncmp(text_of(part), text_of(whole), strlen(text_of(part))));
        json_decref(part);
    }
    part = sampled(keep(hd__format("--tokens 20 --stop %d", (int)json_integer_value(json_array_get(ids, 5)))));
    size_t n = json_array_size(json_object_get(part, "ids"));
    ck_assert_uint_le(n, 6);
    ck_assert_uint_eq(strlen(text_of(part)), n - 1);
    for (size_t i = 0; i < n; i++)
        ck_assert(json_equal(json_array_get(ids, i), json_array_get(json_object_get(part, "ids"), i)));
    json_decref(part);
    /* Special tokens of a prompt; several prompts and samples, of which number k is that of the next seed. */
    part = sampled("--max-new 1 --prompt <|endoftext|>");
    json_decref(part);
    two = command_run("sample llama.yaml " BYTES "--tokenizer tok --use bytes --prompt a --prompt <|endoftext|> "
                      "--samples 2 --seed 5 --max-new 4 --json");
    expect_code(two, 0);
    plain = command_run("sample llama.yaml " BYTES
                        "--tokenizer tok --use bytes --prompt <|endoftext|> --seed 6 --max-new 4 --json");
    int lines = 0;
    for (char *line = two->out; *line; line = strchr(line, '\n') + 1) {
        json_t *o = object(line);
        json_decref(o);
        if (++lines == 4) {
            json_t *a = object(line), *b = object(plain->out);
            ck_assert(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
            ck_assert_int_eq((int)json_integer_value(json_array_get(json_object_get(a, "prompt_ids"), 0)), 256);
            json_decref(a);
            json_decref(b);
        }
    }
    ck_assert_int_eq(lines, 4);
    json_decref(whole);
}
END_TEST

/* Bytes that are no text: a terminal gets none of them, JSON is valid, a pipe gets them as they are; always of the same
 * ids. */
START_TEST(prints_what_is_no_text)
{
#define NOISE "sample llama.yaml model.vocab=256 --random-weights --temperature 5 --max-new 120 --prompt x"
    struct command *raw = command_run(NOISE), *json = command_run(NOISE " --json");
    char command[1024];
    int raw_control = 0;
    expect_code(raw, 0);
    json_t *o = object(json->out);
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "ids")), 120);
    for (size_t i = 0; i < 120; i++) {
        int id = (int)json_integer_value(json_array_get(json_object_get(o, "ids"), i));
        if (raw->out[i + 1] || !id)
            ck_assert_int_eq((unsigned char)raw->out[i + 1], id);
        raw_control |= id == 27 || id >= 0x80;
        if (!id) /* the test reads it as a text */
            break;
    }
    ck_assert(raw_control);
    json_decref(o);
    if (system("command -v script > found 2>&1"))
        return;
    snprintf(command, sizeof command, "script -qc '" HEDDLE " " NOISE "' /dev/null < /dev/null > screen 2>&1");
    ck_assert_int_eq(system(command), 0);
    for (const unsigned char *p = (const unsigned char *)read_file("screen"); *p; p++)
        ck_assert_msg(*p >= 0x20 || strchr("\n\r\t", *p), "byte %d on the terminal", *p);
}
END_TEST

/* One float32 for each label, whose mean is the loss; the same on meshes. */
static float *read_npy(const char *path, int64_t rows, int64_t columns)
{
    char head[128], shape[64];
    FILE *file = fopen(path, "r");
    float *values = keep(calloc((size_t)(rows * columns), sizeof *values));
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(head, 1, sizeof head, file), sizeof head);
    ck_assert(!memcmp(head, "\x93NUMPY\x01\0", 8) && head[8] == 118 && !head[9] && head[127] == '\n');
    snprintf(shape, sizeof shape, "'shape': (%ld, %ld), }", (long)rows, (long)columns);
    head[127] = 0;
    ck_assert_msg(strstr(head + 10, shape) && strstr(head + 10, "'<f4'"), "header: %s", head + 10);
    ck_assert_uint_eq(fread(values, sizeof *values, (size_t)(rows * columns), file), (size_t)(rows * columns));
    ck_assert_int_eq(fgetc(file), EOF);
    fclose(file);
    return values;
}

START_TEST(every_token)
{
    static const char *const meshes[] = {"mesh.dp=2",
                                         "mesh.tp=2",
                                         "mesh.cp=2",
                                         "mesh.pp=2",
                                         "precision.compute=bf16",
                                         "mesh.dp=2 data.micro_batch=3 data.pad_batch=always",
                                         "mesh.dp=2 data.micro_batch=1 data.micro_batches=[5,3]"};
    static const char *const documents[] = {"continue", "mask", "pack"};
#define EVAL "eval llama.yaml checkpoint.dir=tokens data.val_fraction=0.1 eval.batches=2 "
    train(&curve, "tokens", "llama.yaml checkpoint.dir=tokens job.steps=10");
    struct command *c = command_run(EVAL "--per-token one.npy");
    expect_code(c, 0);
    const float *one = read_npy("one.npy", 16, 32);
    json_t *o;
    for (size_t d = 0; d < HD__COUNT(documents); d++) {
        double sum = 0, counted = 0;
        expect_code(command_run(EVAL "data.eod=10 data.documents=%s --per-token apart.npy", documents[d]), 0);
        const float *apart = read_npy("apart.npy", 16, 32);
        for (int i = 0; i < 16 * 32; i++)
            if (!isnan(apart[i])) {
                sum += apart[i];
                counted++;
            }
        c = command_run(EVAL "data.eod=10 data.documents=%s --json", documents[d]);
        o = object(c->out);
        double loss = json_number_value(json_object_get(o, "val_loss"));
        json_decref(o);
        ck_assert_msg(fabs(-sum / counted - loss) < 1e-6, "%s: %.9g, the loss is %.9g", documents[d], -sum / counted,
                      loss);
    }
    for (size_t m = 0; m < HD__COUNT(meshes); m++) {
        expect_code(command_run(EVAL "%s --per-token other.npy", meshes[m]), 0);
        const float *other = read_npy("other.npy", 16, 32);
        double most = 0;
        for (int i = 0; i < 16 * 32; i++)
            most = HD__MAX(most, fabs((double)other[i] - (double)one[i]));
        ck_assert_msg(most < (m == 4 ? 0.1 : 1e-5), "%s: off by %g", meshes[m], most);
        ck_assert(m != 4 || most > 1e-4);
    }
    expect_code(command_run(EVAL "--per-token one.jsonl"), 0);
    o = object(read_file("one.jsonl"));
    ck_assert_float_eq((float)json_number_value(json_array_get(json_object_get(o, "loglikelihoods"), 31)), one[31]);
    json_decref(o);
    ck_assert_int_eq(access("one.npy.part", F_OK), -1);
    write_file("mine.npy", "precious");
    c = command_run(EVAL "--per-token mine.npy");
    expect_code(c, 2);
    ck_assert_str_eq(read_file("mine.npy"), "precious");
    static const char *const arrays[][2] = {{"'<u2', 'fortran_order': False, 'shape': (2, 99)", "tokens"},
                                            {"'<f4', 'fortran_order': False, 'shape': (99,)", "\0\0\0\0"},
                                            {"'<f4', 'fortran_order': False, 'shape': (2, 99)", "\0\0\200\77 is 1"}};
    for (size_t i = 0; i < HD__COUNT(arrays); i++) {
        FILE *file = fopen("theirs.npy", "w");
        fwrite("\x93NUMPY\1\0v", 1, 10, file);
        fprintf(file, "{'descr': %s, }%*s\n", arrays[i][0], (int)(104 - strlen(arrays[i][0])), "");
        fwrite(arrays[i][1], 1, 4, file);
        ck_assert_int_eq(ftell(file), 132);
        fclose(file);
        c = command_run(EVAL "--per-token theirs.npy");
        expect_code(c, 2);
        expect_says(c, "--per-token: theirs.npy is there, and heddle did not write it: name another");
    }
    write_file("other.npy.part", "precious");
    c = command_run(EVAL "--per-token other.npy");
    expect_code(c, 2);
    expect_says(c, "--per-token: other.npy.part is there, and heddle did not write it");
    ck_assert_str_eq(read_file("other.npy.part"), "precious");
    expect_code(command_run(EVAL "--per-token mine.txt"), 2);
    expect_code(command_run(EVAL "--per-token a.npy --requests tok --to b"), 2);
    expect_code(command_run(EVAL "--requests tok"), 2);
}
END_TEST

static void read_golden(struct hd__ckpt_st *st, const char *name, void *out, size_t bytes)
{
    const struct hd__ckpt_st_tensor *t = hd__ckpt_st_find(st, name);
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_ge(t->bytes, bytes);
    ck_assert_msg(!hd__ckpt_st_read(st, t, 0, bytes, out, &err), "%s", err.message);
}

/* log_softmax of the logits that transformers computed with these weights (tests/golden/transformer.py). */
START_TEST(as_transformers)
{
    static const char *const models[] = {"llama", "gpt2"};
    static float logits[4][8][32];
    static int64_t ids[4][8], labels[4][8];
    const char *folder = keep(hd__format(GOLDEN_DIR "/%s", models[_i]));
    struct hd__ckpt_st *st;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert(!hd__ckpt_st_open(keep(hd__format("%s/expected.safetensors", folder)), &st, &err));
    read_golden(st, "logits", logits, sizeof logits);
    int wide = hd__ckpt_st_find(st, "ids")->bytes == 20 * sizeof ids; /* int64, else int32 */
    read_golden(st, "ids", ids, wide ? sizeof ids : sizeof ids / 2);
    read_golden(st, "labels", labels, wide ? sizeof labels : sizeof labels / 2);
    hd__ckpt_st_close(st);
    for (int i = 0; i < 4; i++) {
        uint16_t tokens[9];
        for (int n = 0; n < 9; n++)
            tokens[n] = (uint16_t)(n == 8 ? wide ? labels[i][7] : ((int32_t *)labels)[8 * i + 7]
                                   : wide ? ids[i][n]
                                          : ((int32_t *)ids)[8 * i + n]);
        FILE *file = fopen("nine.bin", "w");
        ck_assert_uint_eq(fwrite(tokens, 2, 9, file), 9);
        fclose(file);
        expect_code(command_run("eval llama.yaml model={\"use\":\"transformer\",\"from\":\"%s\"} data.seq_len=8 "
                                "data.batch=1 data.micro_batch=1 data.train=nine.bin data.val=nine.bin eval.batches=1 "
                                "--per-token golden%d.npy",
                                folder, i),
                    0);
        const float *is = read_npy(keep(hd__format("golden%d.npy", i)), 1, 8);
        for (int n = 0; n < 8; n++) {
            double sum = 0, should;
            for (int v = 0; v < 32; v++)
                sum += exp((double)logits[i][n][v]);
            should = (double)logits[i][n][tokens[n + 1]] - log(sum);
            ck_assert_msg(fabs(is[n] - should) < 1e-5, "%s, token %d of %d: %.9g, not %.9g", folder, n, i, is[n],
                          should);
        }
    }
}
END_TEST

/* A request's answer is the sum of its tokens' log-likelihoods, of a text longer than a sequence in windows. */
START_TEST(answers_requests)
{
    struct command *c;
    char greedy[256];
    make_model();
    json_t *likely = sampled("--max-new 6");
    snprintf(greedy, sizeof greedy, "{\"context\": \"the\", \"continuation\": \"%s\"}\n", text_of(likely));
    json_decref(likely);
    write_file("asked.jsonl",
               keep(hd__format("%s%s", greedy,
                               "{\"context\": \"the\", \"continuation\": \"zzzz\"}\n"
                               "{\"context\": \"\", \"continuation\": \"the\"}\n{\"text\": \"the\"}\n"
                               "{\"text\": \"the cat sat on a mat and the dog ran away from it all\"}\n")));
#define ASK "eval llama.yaml " BYTES "--tokenizer tok --use bytes --requests asked.jsonl --to "
    expect_code(command_run(ASK "answers.jsonl"), 0);
    double is[5];
    char *line = read_file("answers.jsonl");
    for (int i = 0; i < 5; i++, line = strchr(line, '\n') + 1) {
        static const int tokens[] = {6, 4, 3, 3, 53};
        json_t *o = object(line);
        is[i] = json_number_value(json_object_get(o, "logprob"));
        ck_assert(is[i] < 0);
        ck_assert_int_eq(json_is_true(json_object_get(o, "is_greedy")), i == 0);
        ck_assert_int_eq((int)json_integer_value(json_object_get(o, "tokens")), tokens[i]);
        json_decref(o);
    }
    ck_assert(is[0] > is[1] && is[2] == is[3]);
    static const char *const meshes[] = {"mesh.dp=2", "mesh.tp=2", "mesh.cp=2", "mesh.pp=2"};
    for (size_t m = 0; m < HD__COUNT(meshes); m++) {
        expect_code(command_run(ASK "more.jsonl %s", meshes[m]), 0);
        line = read_file("more.jsonl");
        for (int i = 0; i < 5; i++, line = strchr(line, '\n') + 1) {
            json_t *o = object(line);
            double other = json_number_value(json_object_get(o, "logprob"));
            ck_assert_msg(fabs(other - is[i]) < 1e-4, "%s: %.9g, not %.9g", meshes[m], other, is[i]);
            json_decref(o);
        }
    }
    write_file("asked.jsonl", "{\"context\": \"\", \"continuation\": \"5 6 7\"}\n{\"text\": \" 5 6 7\"}\n");
    expect_code(command_run("eval llama.yaml " BYTES "--tokenizer none --requests asked.jsonl --to ids.jsonl"), 0);
    line = read_file("ids.jsonl");
    ck_assert_msg(strstr(line, "\"tokens\": 3}\n{") != NULL && !strncmp(line, strchr(line, '\n') + 1, 40), "%s", line);
    write_file("asked.jsonl", "{\"context\": \"the cat sat on a mat and the dog ran away\", \"continuation\": \"zz\"}\n"
                              "{\"text\": \"the cat sat on a mat and the dog ran away from it all\"}\n");
    expect_says(command_run(ASK "cut.jsonl"),
                "warning: --requests asked.jsonl: 1 of 2 requests lose the beginning of ");
    write_file("asked.jsonl", "{\"context\": \"a\", \"continuation\": \"b\"}\n\n{\"context\": \"a\"}\n");
    c = command_run(ASK "none.jsonl");
    expect_code(c, 2);
    expect_says(c, "--requests asked.jsonl:3: wanted {\"context\"");
    ck_assert_int_eq(access("none.jsonl", F_OK), -1);
}
END_TEST

/* Contexts have what the tokenizer puts around a text, BOS once: what follows one is what a whole text has there. */
START_TEST(requests_begin_with_bos)
{
    double is[4];
    make_model();
    write_file("bos.json",
               "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"<s>\": 9, \"a\": 97, \"b\": 98}, \"merges\": []}, "
               "\"added_tokens\": [{\"id\": 9, \"content\": \"<s>\", \"special\": true, \"normalized\": false}], "
               "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
               "\"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"special_tokens\": "
               "{\"<s>\": {\"id\": \"<s>\", \"ids\": [9], \"tokens\": [\"<s>\"]}}}}");
    write_file("asked.jsonl", "{\"context\": \"ab\", \"continuation\": \"ba\"}\n"
                              "{\"context\": \"<s>ab\", \"continuation\": \"ba\"}\n"
                              "{\"text\": \"abba\"}\n{\"text\": \"ab\"}\n");
    expect_code(
        command_run("eval llama.yaml model.vocab=300 data.format=bytes checkpoint.dir=text --tokenizer bos.json "
                    "--requests asked.jsonl --to answers.jsonl"),
        0);
    char *line = read_file("answers.jsonl");
    for (int i = 0; i < 4; i++, line = strchr(line, '\n') + 1) {
        json_t *o = object(line);
        is[i] = json_number_value(json_object_get(o, "logprob"));
        json_decref(o);
    }
    ck_assert(is[0] == is[1]);
    struct command *c =
        command_run("sample llama.yaml model.vocab=300 data.format=bytes checkpoint.dir=text --tokenizer "
                    "bos.json --prompt <s>ab --max-new 1 --json");
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "\"prompt_ids\": [9, 97, 98]") != NULL, "%s", c->out);
    ck_assert_msg(fabs(is[2] - is[3] - is[0]) < 1e-4, "%.9g is not %.9g", is[2] - is[3], is[0]);
}
END_TEST

/* Round to nearest, ties to even, from the definition: the nearer of the two neighbours, of two as near the even
 * one. */
static void expect_nearest_bf16(float value, uint16_t bits)
{
    uint32_t u;
    memcpy(&u, &value, 4);
    uint32_t low = u >> 16, rest = u & 0xffff, up = rest > 0x8000 || (rest == 0x8000 && low & 1);
    ck_assert_uint_eq(bits, low + up);
}

START_TEST(export_takes_along)
{
#define FIRST "ckpt export llama.yaml checkpoint.dir=first data.val_fraction=0 "
    static const char *const names[] = {"tokenizer.json",         "tokenizer_config.json", "special_tokens_map.json",
                                        "generation_config.json", "chat_template.jinja",   "o200k.tiktoken"};
    struct hd__ckpt_st *wide, *narrow;
    struct hd_error err = HD_ERROR_INIT;
    train(&curve, "first", "llama.yaml checkpoint.dir=first job.steps=2");
    expect_code(command_run(FIRST "--to wide"), 0);
    expect_code(command_run(FIRST "--to half --dtype fp16"), 0);
    expect_code(command_run(FIRST "--to narrow --dtype bf16"), 0);
    ck_assert(!hd__ckpt_st_open("wide", &wide, &err) && !hd__ckpt_st_open("narrow", &narrow, &err));
    for (uint32_t i = 0; i < hd__ckpt_st_count(wide); i++) {
        const struct hd__ckpt_st_tensor *a = hd__ckpt_st_tensor_at(wide, i), *b = hd__ckpt_st_tensor_at(narrow, i);
        float *x = keep(malloc(a->bytes));
        uint16_t *y = keep(malloc(b->bytes));
        ck_assert_str_eq(a->name, b->name);
        ck_assert(a->dtype == HD_F32 && b->dtype == HD_BF16);
        ck_assert(!hd__ckpt_st_read(wide, a, 0, a->bytes, x, &err) &&
                  !hd__ckpt_st_read(narrow, b, 0, b->bytes, y, &err));
        for (uint64_t k = 0; k < a->count; k++)
            expect_nearest_bf16(x[k], y[k]);
    }
    hd__ckpt_st_close(wide);
    hd__ckpt_st_close(narrow);
    /* Of a folder with a tokenizer, a template and fields that no model knows. */
    json_t *config = json_load_file("narrow/config.json", 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(config, "torch_dtype")), "bfloat16");
    json_object_set_new(config, "of_a_stranger", json_pack("{s:[i,i]}", "kept", 1, 2));
    ck_assert_int_eq(json_dump_file(config, "narrow/config.json", 0), 0);
    for (size_t i = 0; i < HD__COUNT(names); i++)
        write_file(keep(hd__format("narrow/%s", names[i])), keep(hd__format("{\"file\": %zu}", i)));
    write_file("narrow/README.md", "not taken along");
#define SECOND "llama.yaml model={\"use\":\"transformer\",\"from\":\"narrow\"} checkpoint.dir=second "
    train(&curve, "second", SECOND "data.format=bytes job.steps=1");
    expect_code(command_run("ckpt export " SECOND "--to taken"), 0);
    for (size_t i = 0; i < HD__COUNT(names); i++)
        ck_assert_str_eq(read_file(keep(hd__format("taken/%s", names[i]))), keep(hd__format("{\"file\": %zu}", i)));
    ck_assert_int_eq(access("taken/README.md", F_OK), -1);
    json_t *taken = json_load_file("taken/config.json", 0, NULL);
    ck_assert(json_equal(taken, config));
    json_decref(taken);
    json_decref(config);
    ck_assert(!hd__ckpt_st_open("taken", &narrow, &err));
    ck_assert_uint_eq(hd__ckpt_st_tensor_at(narrow, 0)->dtype, HD_BF16); /* as model.from's */
    hd__ckpt_st_close(narrow);
    struct command *c = command_run("ckpt export " SECOND "--to taken");
    expect_code(c, 2);
    expect_says(c, "taken/model.safetensors is there, and an export overwrites nothing");
    ck_assert_int_eq(system("mkdir only && cp narrow/tokenizer.json only"), 0);
    expect_code(command_run("ckpt export " SECOND "--to only"), 2);
    ck_assert_int_eq(access("only/config.json", F_OK), -1);
    expect_code(command_run(FIRST "--to x --dtype int8"), 2);
    expect_code(command_run("ckpt ls llama.yaml checkpoint.dir=first --dtype bf16"), 2);
    /* To plan, a model's folder needs its config.json alone. */
    ck_assert_int_eq(system("mkdir plan && cp narrow/config.json plan"), 0);
    expect_code(command_run("check llama.yaml model={\"use\":\"transformer\",\"from\":\"plan\"}"), 0);
    expect_code(command_run("explain llama.yaml model={\"use\":\"transformer\",\"from\":\"plan\"} mesh.tp=2"), 0);
}
END_TEST

/* Master weights of bf16 are exported as they are. */
START_TEST(exports_narrow_masters)
{
#define LOW "precision={\"compute\":\"bf16\",\"master\":\"bf16\"} data.format=bytes data.val_fraction=0.1 "
#define LOW_LOSS LOW "eval.batches=2 --json"
    struct command *here, *there;
    train(&curve, "low", "llama.yaml checkpoint.dir=low job.steps=3 " LOW);
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=low --to low-model " LOW), 0);
    here = command_run("eval llama.yaml checkpoint.dir=low " LOW_LOSS);
    there = command_run("eval llama.yaml model={\"use\":\"transformer\",\"from\":\"low-model\"} " LOW_LOSS);
    expect_code(here, 0);
    expect_code(there, 0);
    json_t *a = object(here->out), *b = object(there->out);
    ck_assert_msg(json_is_real(json_object_get(a, "val_loss")), "%s", here->out);
    ck_assert_msg(json_equal(json_object_get(a, "val_loss"), json_object_get(b, "val_loss")), "%s%s", here->out,
                  there->out);
    json_decref(a);
    json_decref(b);
}
END_TEST

/* A file that none of heddle's own tokenizers reads is that of the plug-in that does, in jobs too. */
START_TEST(any_tokenizer_is_asked)
{
    write_file("tok", "bytes");
    write_file("words.txt", keep(hd__format("%0600d", 7)));
    struct command *c = command_run("train llama.yaml plugins.path=" PLUGINS_OF_TESTS
                                    " model.vocab=300 data={\"train\":\"words.txt\",\"tokenizer\":\"tok\","
                                    "\"seq_len\":16,\"batch\":4} job.steps=1");
    expect_code(c, 0);
    c = command_run("train llama.yaml plugins.path=" PLUGINS_OF_TESTS
                    " model.vocab=300 data={\"train\":\"words.txt\",\"tokenizer\":\"words.txt\",\"seq_len\":16,"
                    "\"batch\":4} job.steps=1");
    expect_code(c, 2);
    expect_says(c, "words.txt: no tokenizer plug-in reads this file: bpe: ");
    expect_says(c, "; bytes: words.txt: does not begin with \"bytes\"");
    write_file("digits", "chars\n0123456789");
    c = command_run_env("HEDDLE_TEST_ABSENT=tokenizer-chars", "train llama.yaml plugins.path=" PLUGINS_OF_TESTS
                                                              " data.tokenizer=digits data.train=words.txt");
    expect_code(c, 2);
    expect_says(c, "; chars: plugin tokenizer-chars cannot be used on this machine: there is no tokenizer-chars");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"samples text", samples_text, 1},
                                        {"prints what is no text", prints_what_is_no_text, 1},
                                        {"every token", every_token, 1},
                                        {"as transformers", as_transformers, 2},
                                        {"answers requests", answers_requests, 1},
                                        {"requests begin with BOS", requests_begin_with_bos, 1},
                                        {"export takes along", export_takes_along, 1},
                                        {"exports narrow masters", exports_narrow_masters, 1},
                                        {"any tokenizer is asked", any_tokenizer_is_asked, 1},
                                        {NULL}};
    return system_run("text", tests);
}
