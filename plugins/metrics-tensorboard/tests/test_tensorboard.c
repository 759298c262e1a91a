/* Event files as TensorBoard writes them: fresh and resumed runs, and numbers that are not finite. */
#include <dirent.h>
#include <math.h>
#include <unistd.h>

#include "core/plugin/plugin.h"
#include "plugins/metrics-tensorboard/events.h"
#include "tests/support/scratch.h"

extern const struct hd_plugin *heddle_plugin_v1_tensorboard(void);

static struct hd_error err = HD_ERROR_INIT;

static const struct hd_metrics_ops *ops_of(void)
{
    return heddle_plugin_v1_tensorboard()->components[0]->ops;
}

/* RFC 3720, appendix B.4 */
START_TEST(crc)
{
    uint8_t bytes[32] = {0};
    ck_assert_uint_eq(events_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    ck_assert_uint_eq(events_crc32c(bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    ck_assert_uint_eq(events_crc32c(bytes, 32), 0x46dd794e);
    ck_assert_uint_eq(events_crc32c("123456789", 9), 0xe3069283);
}
END_TEST

/* Byte for byte the file of TensorBoard's own writer: tests/golden/tensorboard_file.py */
START_TEST(events)
{
    static const int64_t steps[] = {1, 127, 128, 300000};
    struct events out = {0}, summary = {0};
    size_t bytes;
    char *golden = scratch_read(GOLDEN "/events.tfevents", &bytes);
    events_version(&out, 1700000000.25);
    events_restart(&out, 1700000000.25, 101);
    for (size_t i = 0; i < HD__COUNT(steps); i++) {
        events_scalar(&summary, "train/loss", 5.5 / (double)steps[i]);
        events_scalar(&summary, "train/lr", 3e-4);
        events_summary(&out, 1700000000.5 + (double)steps[i], steps[i], &summary);
    }
    ck_assert_uint_eq(out.length, bytes);
    ck_assert_mem_eq(out.at, golden, bytes);
    events_free(&out);
    free(golden);
}
END_TEST

static struct hd_metric real(const char *name, double value)
{
    return (struct hd_metric){.name = name, .type = HD_METRIC_FLOAT, .number = value};
}

/* One run: two steps, of which the second has nothing to show. */
static void run(const char *dir, const char *id, int64_t resumed)
{
    const struct hd_metrics_start start = {
        .struct_size = sizeof start, .job = "j", .record = "{}", .step = resumed, .steps = 9, .run = id};
    const struct hd_metric first[] = {real("loss", 1.5), real("val_loss", NAN), real("later", 2)},
                           second[] = {real("grad_norm", INFINITY), real("tokens", 7)};
    struct hd_metrics_record record = {.struct_size = sizeof record,
                                       .metrics = first,
                                       .count = 3,
                                       .metric_size = sizeof *first,
                                       .step = 7,
                                       .time = 2.5};
    struct hd_metrics *m, *other = NULL;
    ck_ok(ops_of()->open(NULL, &dir, &start, &m, &err));
    ck_refused(ops_of()->open(NULL, &dir, &start, &other, &err), HD_E_INVALID, "another process is writing this run");
    ck_ok(ops_of()->write(m, &record, &err));
    record.metrics = second;
    record.count = 2;
    record.step = 8;
    ck_ok(ops_of()->write(m, &record, &err));
    ops_of()->close(m);
}

START_TEST(files)
{
    struct scratch s;
    char path[512];
    int n = 0, resumed = 0;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "a/b");
    run(dir, "a1", 0);
    run(dir, "a1", 5);
    run(dir, "b2", 0); /* another run, another folder */
    const char *first = scratch_path(&s, "a/b/a1"), *second = scratch_path(&s, "a/b/b2");
    ck_assert_int_eq(access(second, F_OK), 0);
    DIR *open = opendir(first);
    for (struct dirent *e; (e = readdir(open));) {
        size_t bytes;
        if (e->d_name[0] == '.')
            continue;
        ck_assert_int_eq(strncmp(e->d_name, "events.out.tfevents.", 20), 0);
        snprintf(path, sizeof path, "%s/%s", first, e->d_name);
        char *data = scratch_read(path, &bytes);
        struct events anew = {0}, on = {0};
        for (int k = 0; k < 2; k++) {
            struct events *wanted = k ? &on : &anew, summary = {0};
            events_version(wanted, 2.5);
            events_restart(wanted, 2.5, k ? 6 : 1);
            events_scalar(&summary, "train/loss", 1.5);
            events_scalar(&summary, "run/later", 2);
            events_summary(wanted, 2.5, 7, &summary);
        }
        ck_assert_uint_eq(bytes, on.length);
        ck_assert_uint_eq(bytes, anew.length);
        resumed += !memcmp(data, on.at, bytes);
        n += !memcmp(data, on.at, bytes) + !memcmp(data, anew.at, bytes);
        events_free(&anew);
        events_free(&on);
        free(data);
    }
    closedir(open);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(resumed, 1);
    scratch_finish(&s);
}
END_TEST

START_TEST(refusals)
{
    const struct hd_metrics_start start = {.struct_size = sizeof start};
    struct scratch s;
    struct hd_metrics *m;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "file/x");
    scratch_write(&s, "file", "", 0);
    ck_refused(ops_of()->open(NULL, &dir, &start, &m, &err), HD_E_IO, "file/x");
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"crc", crc}, {"events", events}, {"files", files}, {"refusals", refusals}, {NULL, NULL},
    };
    return scratch_run("tensorboard", tests);
}
