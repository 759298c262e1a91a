/* What a run reports: event files as TensorBoard writes them, metrics.jsonl across crashes and resumes. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "service/metrics/metrics.h"
#include "service/metrics/tensorboard.h"
#include "tests/support/scratch.h"

static struct hd_error err = HD_ERROR_INIT;

/* RFC 3720, appendix B.4 */
START_TEST(crc)
{
    uint8_t bytes[32] = {0};
    ck_assert_uint_eq(hd__metrics_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    ck_assert_uint_eq(hd__metrics_crc32c(bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    ck_assert_uint_eq(hd__metrics_crc32c(bytes, 32), 0x46dd794e);
    ck_assert_uint_eq(hd__metrics_crc32c("123456789", 9), 0xe3069283);
}
END_TEST

/* Byte for byte the file of TensorBoard's own writer: tests/golden/tensorboard_file.py */
START_TEST(events)
{
    static const int64_t steps[] = {1, 127, 128, 300000};
    struct hd__text out = {0};
    size_t bytes;
    char *golden = scratch_read(GOLDEN "/events.tfevents", &bytes);
    hd__metrics_event_version(&out, 1700000000.25);
    hd__metrics_event_restart(&out, 1700000000.25, 101);
    for (size_t i = 0; i < HD__COUNT(steps); i++) {
        const struct hd__metrics_scalar scalars[] = {
            {"train/loss", 5.5 / (double)steps[i]}, {"val/loss", NAN}, {"train/lr", 3e-4}};
        hd__metrics_event_scalars(&out, 1700000000.5 + (double)steps[i], steps[i], scalars, 3);
    }
    ck_assert_uint_eq(out.length, bytes);
    ck_assert_mem_eq(out.at, golden, bytes);
    hd__text_free(&out);
    free(golden);
}
END_TEST

START_TEST(event_files)
{
    struct scratch s;
    struct hd__metrics_event_writer *b;
    const struct hd__metrics_scalar loss = {"train/loss", 1.5}, nothing = {"val/loss", NAN};
    struct hd__text wanted = {0};
    char path[512];
    int files = 0;
    scratch_init(&s);
    const char *folder = scratch_path(&s, "a/b");
    for (int run = 0; run < 2; run++) {
        ck_ok(hd__metrics_event_writer_open(folder, 0, &b, &err));
        hd__metrics_event_writer_write(b, 2.5, 7, &loss, 1);
        hd__metrics_event_writer_write(b, 2.5, 8, &nothing, 1);
        hd__metrics_event_writer_close(b);
    }
    hd__metrics_event_scalars(&wanted, 2.5, 7, &loss, 1);
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t bytes;
        if (e->d_name[0] == '.')
            continue;
        ck_assert_int_eq(strncmp(e->d_name, "events.out.tfevents.", 20), 0);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        char *data = scratch_read(path, &bytes);
        /* the version, 9 + 15 bytes in a frame of 16; the restart at step 1, 9 + 2 + 4 */
        ck_assert_uint_eq(bytes, 40 + 31 + wanted.length);
        ck_assert_mem_eq(data + 71, wanted.at, wanted.length);
        free(data);
        files++;
    }
    closedir(dir);
    ck_assert_int_eq(files, 2);
    scratch_write(&s, "file", "", 0);
    ck_refused(hd__metrics_event_writer_open(scratch_path(&s, "file/x"), 0, &b, &err), HD_E_IO, "file/x");
    hd__text_free(&wanted);
    scratch_finish(&s);
}
END_TEST

/* ---- metrics.jsonl */

/* The lines of a file: how many, and each one's step (0 for an event). Every line is a whole JSON object. */
static int read_steps(const char *path, int64_t steps[64], json_t *objects[64])
{
    size_t bytes;
    char *text = scratch_read(path, &bytes), *line = text;
    int n = 0;
    if (bytes)
        ck_assert_int_eq(text[bytes - 1], '\n');
    for (char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        *end = '\0';
        json_t *object = json_loads(line, 0, NULL);
        ck_assert_msg(json_is_object(object), "%s", line);
        steps[n] = json_integer_value(json_object_get(object, "step"));
        if (objects)
            objects[n] = object;
        else
            json_decref(object);
    }
    free(text);
    return n;
}

static void write_steps(const char *path, int64_t resumed, int64_t first, int64_t last)
{
    struct hd__metrics *m;
    int out = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO); /* the progress lines are for people */
    json_t *start = json_pack("{s:s}", "event", resumed ? "resume" : "start");
    ck_ok(hd__metrics_open(path, resumed, start, &m, &err));
    for (int64_t k = first; k <= last; k++) {
        const struct hd__metrics_row row = {.step = k,
                                            .steps = 100,
                                            .loss = 1.0 / (double)(3 * k),
                                            .grad_norm = 0.1f,
                                            .val_loss = k % 2 ? NAN : 2,
                                            .lr = 3e-4,
                                            .tokens = 1000 * k};
        hd__metrics_log_step(m, &row);
    }
    hd__metrics_close(m);
    json_decref(start);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(null);
}

static void check_steps(const char *path, int n, const int64_t *wanted)
{
    int64_t steps[64];
    ck_assert_int_eq(read_steps(path, steps, NULL), n);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(steps[i], wanted[i]);
}

START_TEST(jsonl)
{
    struct scratch s;
    int64_t steps[64];
    json_t *line[64];
    scratch_init(&s);
    const char *path = scratch_path(&s, "runs/x/metrics.jsonl");
    write_steps(path, 0, 1, 5);
    write_steps(path, 0, 1, 4); /* fresh: the five are gone */
    ck_assert_int_eq(read_steps(path, steps, line), 5);
    for (int i = 1; i < 5; i++) {
        ck_assert_int_eq(steps[i], i);
        /* two floats that differ print differently: they come back as they were */
        ck_assert_float_eq((float)json_number_value(json_object_get(line[i], "loss")), (float)(1.0 / (3.0 * i)));
        ck_assert_float_eq((float)json_number_value(json_object_get(line[i], "grad_norm")), 0.1f);
        ck_assert_int_eq(json_object_get(line[i], "val_loss") != NULL, i % 2 == 0);
    }
    for (int i = 0; i < 5; i++)
        json_decref(line[i]);
    scratch_finish(&s);
}
END_TEST

START_TEST(resume)
{
    struct scratch s;
    scratch_init(&s);
    const char *path = scratch_path(&s, "m.jsonl");
    write_steps(path, 0, 1, 9);
    write_steps(path, 6, 7, 8); /* the checkpoint was at 6 */
    check_steps(path, 10, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 0, 7, 8});
    /* killed while writing a line: all cuts of the last one */
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    size_t last = bytes - 1;
    while (text[last - 1] != '\n')
        last--;
    for (size_t cut = last; cut < bytes; cut++) {
        scratch_write(&s, "m.jsonl", text, cut);
        write_steps(path, 7, 8, 8);
        check_steps(path, 11, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 0, 7, 0, 8});
    }
    free(text);
    write_steps(scratch_path(&s, "new.jsonl"), 3, 4, 4); /* nothing to cut */
    check_steps(scratch_path(&s, "new.jsonl"), 2, (const int64_t[]){0, 4});
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"crc", crc},     {"events", events}, {"event files", event_files},
        {"jsonl", jsonl}, {"resume", resume}, {NULL, NULL},
    };
    return scratch_run("metrics", tests);
}
