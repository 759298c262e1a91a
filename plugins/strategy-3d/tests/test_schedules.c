/* Pipeline schedules: complete and free of cycles, in the order that torch has, with the bubbles that the papers give;
 * files of the user's are refused with their place; layers are split as asked. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plugins/strategy-3d/schedule.h"
#include "plugins/strategy-3d/split.h"
#include "tests/suite.h"

static struct hd_error err;
static char path[] = "/tmp/heddle-schedule-XXXXXX.csv";

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

static struct pp_schedule make(const char *name, int32_t stages, int32_t micros, int32_t virtual)
{
    struct pp_schedule s;
    ck_assert_msg(pp_make(name, stages, micros, virtual, &s, &err) == HD_OK, "%s %d %d %d: %s", name, stages, micros,
                  virtual, err.message);
    return s;
}

/* ---- what every schedule must be: counted again, by other code than pp_check */

static void assert_complete(const struct pp_schedule *s)
{
    int32_t n = s->chunks * s->micros, *forward = calloc((size_t)n, sizeof *forward),
            *inputs = calloc((size_t)n, sizeof *inputs), *weights = calloc((size_t)n, sizeof *weights);
    for (int32_t p = 0; p < s->stages; p++)
        for (int32_t k = 0; k < s->stage[p].count; k++) {
            const struct pp_action *a = &s->stage[p].at[k];
            int32_t at = a->chunk * s->micros + a->micro;
            ck_assert_int_eq(s->stage_of[a->chunk], p);
            forward[at] += a->kind == PP_F;
            inputs[at] += a->kind == PP_I || a->kind == PP_B;
            weights[at] += a->kind == PP_W || a->kind == PP_B;
        }
    for (int32_t k = 0; k < n; k++)
        ck_assert_msg(forward[k] == 1 && inputs[k] == 1 && weights[k] == 1, "%s: chunk %d micro-batch %d", s->name,
                      k / s->micros, k % s->micros);
    free(forward);
    free(inputs);
    free(weights);
}

/* Gradients of weights are summed in the order of micro-batches: why schedules agree bit for bit. */
static void assert_sums_in_order(const struct pp_schedule *s)
{
    int32_t *last = malloc((size_t)s->chunks * sizeof *last);
    for (int32_t c = 0; c < s->chunks; c++)
        last[c] = -1;
    for (int32_t p = 0; p < s->stages; p++)
        for (int32_t k = 0; k < s->stage[p].count; k++) {
            const struct pp_action *a = &s->stage[p].at[k];
            if (a->kind == PP_W || a->kind == PP_B)
                ck_assert_int_eq(a->micro, ++last[a->chunk]);
        }
    free(last);
}

static void assert_sound(const char *name, int32_t stages, int32_t micros, int32_t virtual)
{
    struct pp_schedule s = make(name, stages, micros, virtual);
    assert_complete(&s);
    assert_sums_in_order(&s);
    pp_free(&s);
}

START_TEST(every_size_is_sound)
{
    for (int32_t p = 1; p <= 9; p++)
        for (int32_t m = 1; m <= 3 * p + 1; m++) {
            assert_sound("gpipe", p, m, 0);
            assert_sound("1f1b", p, m, 1);
            assert_sound("zb-h1", p, m, 0);
            assert_sound("zb-v", p, m, 2);
            for (int32_t v = 2; m % p == 0 && v <= 4; v++)
                assert_sound("interleaved", p, m, v);
        }
}
END_TEST

/* Micro-batches whose forward is done and whose gradients of weights are not: what a stage must keep. */
static int32_t most_alive(const struct pp_schedule *s, int32_t p)
{
    int32_t alive = 0, most = 0;
    for (int32_t k = 0; k < s->stage[p].count; k++) {
        int32_t kind = s->stage[p].at[k].kind;
        alive += (kind == PP_F) - (kind == PP_B || kind == PP_W);
        most = alive > most ? alive : most;
    }
    return most;
}

START_TEST(what_a_stage_keeps)
{
    for (int32_t p = 0; p < 4; p++) {
        struct pp_schedule s[] = {make("gpipe", 4, 12, 0), make("1f1b", 4, 12, 0), make("zb-h1", 4, 12, 0),
                                  make("zb-v", 4, 12, 0)};
        ck_assert_int_eq(most_alive(&s[0], p), 12);
        ck_assert_int_eq(most_alive(&s[1], p), 4 - p);
        ck_assert_int_eq(most_alive(&s[2], p), 4);     /* what 1f1b keeps on stage 0, and no more */
        ck_assert_int_le(most_alive(&s[3], p), 2 * 4); /* in chunks of half the size */
        for (size_t k = 0; k < sizeof s / sizeof *s; k++)
            pp_free(&s[k]);
    }
}
END_TEST

/* ---- torch's order: tests/golden/pipeline.py */

static void write_rows(const struct pp_schedule *s, char *out, size_t room)
{
    size_t n = 0;
    for (int32_t p = 0; p < s->stages; p++)
        for (int32_t k = 0; k < s->stage[p].count; k++) {
            const struct pp_action *a = &s->stage[p].at[k];
            n += (size_t)snprintf(out + n, room - n, "%d%c%d%c", a->chunk, pp_letter(a->kind), a->micro,
                                  k + 1 < s->stage[p].count ? ',' : '\n');
        }
}

static void write_file(const char *text)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void assert_same(const struct pp_schedule *a, const struct pp_schedule *b)
{
    ck_assert_int_eq(a->chunks, b->chunks);
    ck_assert_int_eq(a->split, b->split);
    ck_assert_mem_eq(a->stage_of, b->stage_of, (size_t)a->chunks * sizeof *a->stage_of);
    for (int32_t p = 0; p < a->stages; p++) {
        ck_assert_int_eq(a->stage[p].count, b->stage[p].count);
        for (int32_t k = 0; k < a->stage[p].count; k++)
            ck_assert_mem_eq(&a->stage[p].at[k], &b->stage[p].at[k], 3 * sizeof(int32_t));
    }
}

/* One schedule of the golden file: ours is it, and reading it as the user's file gives ours. */
static void compare(const char *name, int32_t stages, int32_t micros, int32_t virtual, const char *rows)
{
    static char mine[1 << 16];
    struct pp_schedule s = make(name, stages, micros, virtual), read;
    write_rows(&s, mine, sizeof mine);
    ck_assert_str_eq(mine, rows);
    write_file(rows);
    read = make(path, stages, micros, 0);
    assert_same(&s, &read);
    pp_free(&s);
    pp_free(&read);
}

START_TEST(the_order_is_that_of_torch)
{
    static char rows[1 << 16];
    char line[1 << 14], name[32] = "", next[32];
    int32_t stages = 0, micros = 0, virtual = 0, seen = 0, a, b, c;
    FILE *f = fopen(GOLDEN_DIR "/pipeline.csv", "rb");
    ck_assert_ptr_nonnull(f);
    for (int more = 1; more;) {
        more = fgets(line, sizeof line, f) != NULL;
        int head = more && sscanf(line, "# %31s %d %d %d", next, &a, &b, &c) == 4;
        if ((head || !more) && *name) {
            compare(name, stages, micros, virtual, rows);
            seen++;
        }
        if (head) {
            memcpy(name, next, sizeof name);
            stages = a, micros = b, virtual = c;
            *rows = 0;
        } else if (more && *line != '#') {
            strcat(rows, line);
        }
    }
    fclose(f);
    ck_assert_int_eq(seen, 15);
}
END_TEST

/* ---- bubbles */

static struct pp_bubble bubble_of(struct pp_schedule s, double f, double i, double w, double message)
{
    double t[3][64];
    struct pp_bubble b;
    ck_assert_int_le(s.chunks, 64);
    for (int32_t c = 0; c < s.chunks; c++) {
        t[0][c] = f / (s.chunks / s.stages);
        t[1][c] = i / (s.chunks / s.stages);
        t[2][c] = w / (s.chunks / s.stages);
    }
    ck_assert_int_eq(pp_time(&s, &(struct pp_times){t[0], t[1], t[2], message}, &b, NULL), 1);
    pp_free(&s);
    return b;
}

static void assert_near(double got, double wanted, double within)
{
    ck_assert_msg(fabs(got - wanted) <= within, "%.9g is not %.9g", got, wanted);
}

START_TEST(equal_stage_times)
{
    for (int32_t p = 2; p <= 8; p++)
        for (int32_t m = p; m <= 4 * p; m += p) {
            double P = p, M = m, eps = 1e-12;
            struct pp_bubble g = bubble_of(make("gpipe", p, m, 0), 1, 1, 1, 0),
                             o = bubble_of(make("1f1b", p, m, 0), 3, 2, 5, 0),
                             z = bubble_of(make("zb-h1", p, m, 0), 1, 1, 1, 0);
            assert_near(g.over_ideal, (P - 1) / M, eps);
            assert_near(g.over_whole, (P - 1) / (M + P - 1), eps);
            assert_near(o.over_ideal, (P - 1) / M, eps);
            assert_near(z.over_ideal, (P - 1) / (3 * M), eps); /* (P - 1)(F + I - W) of 3 M: the paper's table 1 */
            for (int32_t v = 2; v <= 4; v++) {
                struct pp_bubble i = bubble_of(make("interleaved", p, m, v), 1, 1, 1, 0);
                assert_near(i.over_ideal, (P - 1) / (M * v), eps);
            }
            assert_near(bubble_of(make("zb-v", p, 2 * p + m, 0), 1, 1, 1, 0).over_ideal, 0, eps);
        }
}
END_TEST

START_TEST(published_bubbles)
{
    char line[512];
    int seen = 0;
    FILE *f = fopen(GOLDEN_DIR "/zero_bubble.csv", "rb");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        int stages, micros;
        double tf, tb, tw, comm, one, zb;
        if (sscanf(line, "%*[^,],%d,%d,%lf,%lf,%lf,%lf,%lf,%lf", &stages, &micros, &tf, &tb, &tw, &comm, &one, &zb) !=
            8)
            continue;
        assert_near(bubble_of(make("1f1b", stages, micros, 0), tf, tb, tw, comm).over_whole, one, 0.5e-4);
        assert_near(bubble_of(make("zb-h1", stages, micros, 0), tf, tb, tw, comm).over_whole, zb, 0.5e-4);
        seen++;
    }
    fclose(f);
    ck_assert_int_eq(seen, 6);
}
END_TEST

/* ---- refusals */

static void assert_refused(const char *name, int32_t stages, int32_t micros, int32_t virtual, const char *says)
{
    struct pp_schedule s;
    ck_assert_int_eq(pp_make(name, stages, micros, virtual, &s, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, says) != NULL, "'%s' is not in: %s", says, err.message);
}

START_TEST(numbers_that_do_not_suit)
{
    assert_refused("interleaved", 4, 10, 2, "nearest that work are 8 and 12");
    assert_refused("interleaved", 4, 3, 2, "nearest that works is 4");
    assert_refused("interleaved", 4, 8, 1, "at least 2 chunks");
    assert_refused("1f1b", 4, 8, 2, "1 chunk a stage");
    assert_refused("1F1B", 4, 8, 2, "1 chunk a stage"); /* by its usual name, too */
    assert_refused("zb-v", 4, 8, 3, "2 chunks a stage");
    assert_refused("dualpipe", 4, 8, 0, "there is no schedule 'dualpipe': gpipe");
}
END_TEST

START_TEST(files_that_are_wrong)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"0F0,0B0\n", "has 1 row, mesh.pp is 2"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1X1\n", "csv:2:13: '1X1' is no action"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B\n", "csv:2:13: '1B' is no action"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1z\n", "'1B1z' is no action"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,F1,1B1\n", "csv:2:9: 'F1' is no action"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,99999999999F1,1B1\n", "is no action"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,99999F1,1B1\n", "too large a chunk"},
        {"0F0,0SEND_F0,0B0\n1F0,1B0\n", "csv:1:5: '0SEND_F0' is not an action of a compute schedule"},
        {"0F0,0F1,0B0,0B1\n(1F0;1B1)OVERLAP_F_B\n", "compute schedule"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1F2\n", "csv:2:13: '1F2' has micro-batch 2: the job has 2"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,0B1\n", "csv:2:13: '0B1' puts chunk 0 on stage 1, but it is on stage 0"},
        {"0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n", "no action of chunk 1, but some of chunk 2"},
        {"0F0,0F1,0B0,0B1\n,,,\n", "csv:2:1: stage 1 does nothing"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1F1\n", "csv:2:13: 1F1 is there twice"},
        {"0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", "csv:2:1: 1B0 comes before the forward"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1W0,1I0,1B1\n", "csv:2:9: 1W0 comes before the gradient of activations"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1W0,1B1\n", "csv:2:13: 1W0 is too much"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1I0,1B1\n", "second backward"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n", "the row of chunk 1 (stage 1) has no B (or I and W) of micro-batch 1"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1I0,1I1,1W0\n", "has no W of micro-batch 1"},
        {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n", "csv:2:9: 1F0 comes after that of a later micro-batch"},
        {"0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", "csv:1:9: 0B0 overtakes: stage 1 sends what 0B1 needs first"},
        {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "csv:1:5: 0B0 can never start"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        write_file(rows[n].text);
        assert_refused(path, 2, 2, 0, rows[n].says);
    }
    write_file("0F0,0B0\n1F0,1B0\n");
    assert_refused(path, 2, 1, 2, "leave `virtual` out");
    assert_refused("/nowhere/x.csv", 2, 2, 0, "strategies.3d.schedule: cannot open /nowhere/x.csv");
}
END_TEST

START_TEST(files_may_be_written_freely)
{
    write_file("# mine\r\n\"0F0\" , 0F1,,, 0B0 ,0B1,\r\n\n ,1F0, 1I0,1F1,,1W0,1B1");
    struct pp_schedule s = make(path, 2, 2, 0);
    ck_assert_int_eq(s.stage[0].count, 4);
    ck_assert_int_eq(s.stage[1].count, 5);
    ck_assert_int_eq(s.split, 1);
    ck_assert_int_eq(s.stage[1].at[0].line, 4);
    ck_assert_int_eq(s.stage[1].at[0].column, 3);
    pp_free(&s);
}
END_TEST

/* ---- layers to chunks */

static void assert_chunks(const int32_t *chunk_of, int32_t layers, const char *wanted)
{
    char text[128] = "";
    for (int32_t l = 0; l < layers; l++)
        text[l] = (char)('0' + chunk_of[l]);
    ck_assert_str_eq(text, wanted);
}

static void assert_balanced(const double *weight, int32_t layers, double before, double after, int32_t chunks,
                            const char *wanted)
{
    int32_t chunk_of[16];
    ck_assert_int_eq(pp_split_balanced(weight, layers, before, after, chunks, chunk_of, &err), HD_OK);
    assert_chunks(chunk_of, layers, wanted);
}

START_TEST(layers_are_split)
{
    double equal[] = {1, 1, 1, 1, 1, 1, 1, 1}, uneven[] = {5, 1, 1, 1, 1, 1}, counts[] = {1, 4, 3};
    int32_t chunk_of[16];
    pp_split_evenly(8, 4, chunk_of);
    assert_chunks(chunk_of, 8, "00112233");
    pp_split_evenly(8, 3, chunk_of);
    assert_chunks(chunk_of, 8, "00011122");
    assert_balanced(equal, 8, 0, 0, 4, "00112233");
    assert_balanced(equal, 8, 0, 2, 2, "00000111"); /* a head as heavy as two layers */
    assert_balanced(equal, 8, 3, 3, 4, "01112223");
    assert_balanced(uneven, 6, 0, 0, 2, "011111");
    assert_balanced(equal, 8, 100, 0, 3, "01111222"); /* nothing helps the first: the others are even */
    ck_assert_int_eq(pp_split_by_hand(counts, 3, 8, 3, chunk_of, &err), HD_OK);
    assert_chunks(chunk_of, 8, "01111222");
}
END_TEST

static const char *const block_names[] = {"embed", "L0", "L1", "head"};

static int32_t read_times(const char *first, const char *second, double weight[4])
{
    char name[] = "/tmp/heddle-times-XXXXXX", other[64];
    int fd = mkstemp(name);
    int32_t rc;
    err = (struct hd_error)HD_ERROR_INIT;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, first, strlen(first)), (ssize_t)strlen(first));
    close(fd);
    snprintf(other, sizeof other, "%s.1", name);
    if (second) {
        FILE *f = fopen(other, "w");
        ck_assert_ptr_nonnull(f);
        fputs(second, f);
        fclose(f);
    }
    rc = pp_split_read(name, block_names, 4, weight, &err);
    unlink(name);
    if (second)
        unlink(other);
    return rc;
}

START_TEST(measured_times_are_read)
{
    static const struct {
        const char *first, *second, *says;
    } rows[] = {{"# stage 0 of 1\nembed,1\nL0,2\nL1,3\n", NULL, "has no time of block head"},
                {"embed,1\n", NULL, ":1: expected \"# stage 0 of N\""},
                {"# stage 1 of 2\n", NULL, ":1: expected"},
                {"# stage 0 of 1\nembed,1\nL9,2\n", NULL, ":3: the model has no such block"},
                {"# stage 0 of 1\nembed,1\nembed,2\n", NULL, ":3: this block was there before"},
                {"# stage 0 of 1\nembed,0\n", NULL, ":2: expected a number of seconds above 0"},
                {"# stage 0 of 1\nembed,1x\n", NULL, ":2: expected a number"},
                {"# stage 0 of 1\nembed\n", NULL, ":2: expected BLOCK,SECONDS"},
                {"# stage 0 of 2\nembed,1\n", NULL, "split: cannot open"},
                {"# stage 0 of 2\nembed,1\n", "# stage 1 of 3\n", ".1:1: expected \"# stage 1 of 2\""}};
    double weight[4];
    ck_assert_msg(!read_times("# stage 0 of 2\nembed,0.5\nL0,2e-3\n", "# stage 1 of 2\nL1,3\n\nhead,0.25\r\n", weight),
                  "%s", err.message);
    ck_assert(weight[0] == 0.5 && weight[1] == 2e-3 && weight[2] == 3 && weight[3] == 0.25);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(read_times(rows[i].first, rows[i].second, weight), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, rows[i].says) != NULL, "%s", err.message);
    }
}
END_TEST

/* Against all ways to cut. */
START_TEST(no_split_is_better)
{
    uint32_t random = 1;
    for (int round = 0; round < 200; round++) {
        double w[7], best = INFINITY, heaviest = 0, before, after, sum[3] = {0};
        int32_t chunk_of[7];
        for (int l = 0; l < 7; l++)
            w[l] = 1 + (random = random * 1664525 + 1013904223) % 1000;
        before = random % 700, after = random % 1300;
        ck_assert_int_eq(pp_split_balanced(w, 7, before, after, 3, chunk_of, &err), HD_OK);
        for (int i = 1; i < 6; i++)
            for (int j = i + 1; j < 7; j++) {
                double s[3] = {before, 0, after};
                for (int l = 0; l < 7; l++)
                    s[(l >= i) + (l >= j)] += w[l];
                best = fmin(best, fmax(s[0], fmax(s[1], s[2])));
            }
        sum[0] = before, sum[2] = after;
        for (int l = 0; l < 7; l++)
            sum[chunk_of[l]] += w[l];
        heaviest = fmax(sum[0], fmax(sum[1], sum[2]));
        assert_near(heaviest, best, 1e-9 * best);
    }
}
END_TEST

START_TEST(splits_by_hand_that_are_wrong)
{
    double few[] = {4, 4}, half[] = {2.5, 2.5, 3}, none[] = {0, 4, 4}, many[] = {3, 3, 3};
    int32_t chunk_of[8];
    ck_assert_int_eq(pp_split_by_hand(few, 2, 8, 3, chunk_of, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "2 numbers, the pipeline 3 chunks"));
    ck_assert_int_eq(pp_split_by_hand(half, 3, 8, 3, chunk_of, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "split[0] = 2.5"));
    ck_assert_int_eq(pp_split_by_hand(none, 3, 8, 3, chunk_of, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "split[0] = 0"));
    ck_assert_int_eq(pp_split_by_hand(many, 3, 8, 3, chunk_of, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "adds up to 9 layers, the model has 8"));
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("schedules");
    int fd = mkstemps(path, 4);
    if (fd < 0)
        return 1;
    close(fd);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, every_size_is_sound);
    tcase_add_test(c, what_a_stage_keeps);
    tcase_add_test(c, the_order_is_that_of_torch);
    tcase_add_test(c, equal_stage_times);
    tcase_add_test(c, published_bubbles);
    tcase_add_test(c, numbers_that_do_not_suit);
    tcase_add_test(c, files_that_are_wrong);
    tcase_add_test(c, files_may_be_written_freely);
    tcase_add_test(c, layers_are_split);
    tcase_add_test(c, measured_times_are_read);
    tcase_add_test(c, no_split_is_better);
    tcase_add_test(c, splits_by_hand_that_are_wrong);
    int failed = suite_run_case("schedules", c);
    unlink(path);
    return failed;
}
