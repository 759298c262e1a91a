/* data.documents through the built command: any mesh trains like one rank, a resumed job like one that never stopped,
 * padding and documents' ends are no labels, and what cannot keep documents apart is refused by name. */
#include "tests/system/system.h"

static struct curve a, b;

/* Lines of the corpus are its documents. */
#define PACK " job.steps=4 data.documents=pack data.eod=10"
#define MASK " job.steps=4 data.documents=mask data.eod=10"

static const char *const meshes[] = {
    "%s.yaml %s mesh.cp=2 strategies=[{\"use\":\"3d\",\"context\":\"ring\"},{\"use\":\"zero\",\"stage\":3}]",
    "%s.yaml %s mesh.cp=2 strategies=[{\"use\":\"3d\",\"context\":\"ulysses\"},{\"use\":\"zero\",\"stage\":1}]",
    "%s.yaml %s mesh.tp=2 strategies=[{\"use\":\"3d\",\"sequence_parallel\":true},{\"use\":\"zero\"}]",
    "%s.yaml %s mesh.pp=2 strategies=[{\"use\":\"3d\",\"schedule\":\"zb-v\"},{\"use\":\"zero\"}] model.layers=4",
    "%s.yaml %s mesh.dp=2 strategies.zero.stage=3 recompute=full",
};

static void on_any_mesh(const char *model, const char *mode)
{
    for (size_t i = 0; i < HD__COUNT(meshes); i++) {
        const char *layers = strstr(meshes[i], "model.layers=4");
        train(&a, "documents-one", "%s.yaml %s%s%s", model, mode, layers ? " " : "", layers ? layers : "");
        train(&b, "documents-mesh", meshes[i], model, mode);
        expect_close(&b, &a, 1e-5);
    }
}

START_TEST(llama)
{
    on_any_mesh("llama", MASK);
}
END_TEST

START_TEST(gpt2)
{
    on_any_mesh("gpt2", PACK);
}
END_TEST

START_TEST(experts)
{
    train(&a, "documents-experts", "mixtral.yaml " PACK);
    train(&b, "documents-apart", "mixtral.yaml " PACK " mesh.ep=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]");
    expect_close(&b, &a, 1e-5);
}
END_TEST

/* Cut into any micro-batches, and stopped in between. */
START_TEST(position_and_batches)
{
    train(&a, "documents-straight", "llama.yaml " PACK);
    train(&b, "documents-cut", "llama.yaml " PACK " data.micro_batch=1");
    expect_close(&b, &a, 1e-5);
    train(&b, "documents-parts", "llama.yaml " PACK " checkpoint.dir=parts job.steps=2");
    train(&b, "documents-parts", "llama.yaml " PACK " checkpoint.dir=parts");
    ck_assert_int_eq(b.n, 4);
    expect_same_bits(&b, &a);
}
END_TEST

/* A packed corpus is not packed to be compared with what a checkpoint was trained on: its tokens are counted. */
START_TEST(evaluated_on_others)
{
#define EVALUATED "llama.yaml data.train=packed.txt checkpoint.dir=packed data.val_fraction=0.1 eval.batches=1 " PACK
    ck_assert_int_eq(system("cp corpus.txt packed.txt"), 0);
    expect_code(command_run("train " EVALUATED " eval.every=4"), 0);
    struct command *c = command_run("eval " EVALUATED);
    ck_assert_msg(!c->code && !strstr(c->err, "is not what it was"), "%s", c->err);
    ck_assert_int_eq(system("head -c 50000 corpus.txt > packed.txt"), 0);
    c = command_run("eval " EVALUATED);
    expect_code(c, 0);
    expect_says(c,
                "data.train is not what it was when checkpoint step-00000004 was saved: it is 45000 tokens, and was ");
    expect_says(c, ": what is evaluated here may have been trained on");
}
END_TEST

/* Long documents come first in a packing, and an evaluation of some has short ones, too. */
START_TEST(evaluated_on_all_lengths)
{
    ck_assert_int_eq(system("for i in $(seq 400); do [ $i -gt 20 ] || head -c 190 corpus.txt | tr '\\n' ' '; echo "
                            "light; done > lengths.txt"),
                     0);
    expect_code(
        command_run("eval llama.yaml --random-weights data.val=lengths.txt eval.batches=4 --per-token all.jsonl " PACK),
        0);
    ck_assert_ptr_nonnull(strstr(read_file("all.jsonl"), "null, "));
}
END_TEST

/* The three ways differ, and say what they are. */
START_TEST(the_ways_differ)
{
    struct command *c;
    train(&a, "way-continue", "llama.yaml job.steps=2 data.eod=10");
    train(&b, "way-default", "llama.yaml job.steps=2");
    expect_same_bits(&a, &b);
    train(&b, "way-mask", "llama.yaml " MASK " job.steps=2");
    ck_assert_str_ne(a.text[1], b.text[1]); /* no document ends in the first batch */
    train(&a, "way-pack", "llama.yaml " PACK " job.steps=2");
    ck_assert_str_ne(a.text[1], b.text[1]);
    c = command_run("train llama.yaml " PACK " job.name=way-said job.steps=1 checkpoint.every=1");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "of these are tokens, the rest is padding"));
    c = command_run("sample llama.yaml " PACK " job.name=way-said checkpoint.every=1 --prompt a --tokens 4");
    expect_code(c, 0);
    c = command_run("eval llama.yaml " PACK " job.name=way-said checkpoint.every=1 data.val=corpus.txt");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "perplexity"));
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        const char *words, *says;
    } rows[] = {
        {"data.documents=mask", "say data.eod, the id of the token that ends one"},
        {"data.documents=apart", "none of continue, mask, pack"},
        {"data.documents=true", "mask or pack"},
        {"data.documents=mask plugins.path=[\"" ASYNC "\"] data.use=pattern data.train=endless",
         "does not say where documents end"},
        {MASK " mesh.dp=2 strategies=[{\"use\":\"zero\"},{\"use\":\"localsgd\",\"every\":2}]",
         "excludes data.documents"},
        {MASK " data.train=none.txt", "none.txt"},
        {PACK " data.eod=-2", "data.eod"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("train llama.yaml job.name=refused %s", rows[i].words);
        ck_assert_int_ne(c->code, 0);
        expect_says(c, rows[i].says);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"llama", llama, 1},
                                        {"gpt2", gpt2, 1},
                                        {"experts", experts, 1},
                                        {"position and batches", position_and_batches, 1},
                                        {"evaluated on others", evaluated_on_others, 1},
                                        {"evaluated on all lengths", evaluated_on_all_lengths, 1},
                                        {"the ways differ", the_ways_differ, 1},
                                        {"refusals", refusals, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-documents", tests);
}
