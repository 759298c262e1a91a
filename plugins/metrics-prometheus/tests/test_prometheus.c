/* The text of a scrape, node_exporter's file, and settings that are refused. Scrapes by HTTP: scrape.py */
#include <arpa/inet.h>
#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/plugin/plugin.h"
#include "plugins/common/nvml.h"
#include "plugins/metrics-prometheus/machine.h"
#include "plugins/metrics-prometheus/text.h"
#include "tests/support/scratch.h"

extern const struct hd_plugin *heddle_plugin_v1_prometheus(void);

static struct hd_error err = HD_ERROR_INIT;
struct settings {
    const char *address, *textfile;
    int64_t port;
    int32_t machine, reserved;
};

static const struct hd_metrics_ops *ops_of(void)
{
    return heddle_plugin_v1_prometheus()->components[0]->ops;
}

static struct hd_metric real(const char *name, double value)
{
    return (struct hd_metric){.name = name, .type = HD_METRIC_FLOAT, .number = value};
}

static struct hd_metrics_record record_of(int64_t step, const struct hd_metric *metrics, size_t n)
{
    return (struct hd_metrics_record){.struct_size = sizeof(struct hd_metrics_record),
                                      .metrics = metrics,
                                      .count = n,
                                      .metric_size = sizeof *metrics,
                                      .step = step};
}

static int has(const char *text, const char *line)
{
    const char *at = strstr(text, line);
    return at && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

START_TEST(text)
{
    const struct hd_metric first[] = {real("loss", 2.25),         real("tokens", 4096),   real("tokens_per_s", 1e6),
                                      real("step_s", 0.001),      real("mfu", 0),         real("comm_s_dp", 0.5),
                                      real("comm_s", 9),          real("unheard_of", 7),  real("alarms_loss_spike", 1),
                                      real("compute_s_0", 0.125), real("compute_s_1", 2), real("comm_s_", 3)},
                           second[] = {real("loss", NAN), real("mfu", 0.375), real("step_s", 1e9),
                                       real("step_s", INFINITY), real("tokens_per_s", INFINITY)};
    struct values v = {0};
    size_t bytes;
    values_start(&v, 6);
    char *text = values_text(&v, &bytes);
    ck_assert(has(text, "heddle_step 6") && !strstr(text, "heddle_loss") && !strstr(text, "heddle_tokens"));
    ck_assert(has(text, "heddle_step_seconds_count 0"));
    free(text);
    struct hd_metrics_record record = record_of(7, first, HD__COUNT(first));
    values_set(&v, &record);
    text = values_text(&v, &bytes);
    ck_assert_uint_eq(strlen(text), bytes);
    static const char *const lines[] = {"heddle_step 7",
                                        "heddle_loss 2.25",
                                        "# TYPE heddle_tokens_total counter",
                                        "heddle_tokens_total 4096",
                                        "heddle_tokens_per_second 1000000",
                                        "heddle_step_seconds_bucket{le=\"0.001\"} 1",
                                        "heddle_step_seconds_bucket{le=\"+Inf\"} 1",
                                        "heddle_exposed_comm_seconds{axis=\"dp\"} 0.5",
                                        "heddle_rank_compute_seconds{rank=\"0\"} 0.125",
                                        "heddle_rank_compute_seconds{rank=\"1\"} 2",
                                        "heddle_alarms_total{rule=\"loss_spike\"} 1"};
    for (size_t i = 0; i < HD__COUNT(lines); i++)
        ck_assert_msg(has(text, lines[i]), "no line '%s' in\n%s", lines[i], text);
    ck_assert(!strstr(text, "mfu") && !strstr(text, "unheard") && !strstr(text, "axis=\"\""));
    free(text);
    record = record_of(8, second, HD__COUNT(second));
    values_set(&v, &record);
    text = values_text(&v, &bytes);
    ck_assert(has(text, "heddle_loss NaN") && has(text, "heddle_tokens_per_second +Inf"));
    ck_assert(has(text, "heddle_mfu_ratio 0.375") && has(text, "heddle_tokens_total 4096"));
    ck_assert(has(text, "heddle_step_seconds_bucket{le=\"500\"} 1") && has(text, "heddle_step_seconds_count 2"));
    free(text);
}
END_TEST

START_TEST(textfile)
{
    struct scratch s;
    struct hd_metrics *m, *other = NULL;
    size_t bytes;
    const struct hd_metrics_start start = {.struct_size = sizeof start, .job = "j", .record = "{}", .steps = 9};
    const struct hd_metric loss = real("loss", 1.5);
    const struct hd_metrics_record record = record_of(3, &loss, 1);
    scratch_init(&s);
    const char *path = scratch_path(&s, "heddle.prom"), *temporary = scratch_path(&s, "heddle.prom.tmp");
    struct settings settings = {.port = -1, .textfile = path};
    ck_ok(ops_of()->open(NULL, &settings, &start, &m, &err));
    char *before = scratch_read(path, &bytes);
    ck_assert(has(before, "heddle_step 0"));
    free(before);
    ck_ok(ops_of()->write(m, &record, &err));
    ck_refused(ops_of()->open(NULL, &settings, &start, &other, &err), HD_E_INVALID, "another process is writing it");
    char *after = scratch_read(path, &bytes);
    ck_assert(has(after, "heddle_step 3") && has(after, "heddle_loss 1.5"));
    ck_assert_int_ne(access(temporary, F_OK), 0);
    free(after);
    ops_of()->close(m);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_ok(ops_of()->open(NULL, &settings, &start, &other, &err));
    ops_of()->close(other);
    scratch_finish(&s);
}
END_TEST

START_TEST(refusals)
{
    struct scratch s;
    struct hd_metrics *m = NULL;
    const struct hd_metrics_start start = {.struct_size = sizeof start, .record = "{}"};
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof taken;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    scratch_init(&s);
    ck_assert(!bind(fd, (struct sockaddr *)&taken, sizeof taken) && !listen(fd, 1));
    ck_assert(!getsockname(fd, (struct sockaddr *)&taken, &length));
    const struct {
        struct settings settings;
        int32_t code;
        const char *words;
    } cases[] = {
        {{"127.0.0.1", NULL, -1}, HD_E_INVALID, "set port, textfile or both"},
        {{"localhost", NULL, 0}, HD_E_INVALID, "'localhost' is no numeric address"},
        {{"", NULL, 0}, HD_E_INVALID, "'' is no numeric address"},
        {{"127.0.0.1", NULL, ntohs(taken.sin_port)}, HD_E_IO, "Address already in use"},
        {{"192.0.2.1", NULL, 0}, HD_E_IO, "Cannot assign requested address"},
        {{"127.0.0.1", "metrics.txt", -1}, HD_E_INVALID, "that end with .prom alone"},
        {{"127.0.0.1", ".prom", -1}, HD_E_INVALID, "that end with .prom alone"},
        {{"127.0.0.1", scratch_path(&s, "none/x.prom"), -1}, HD_E_IO, "No such file"},
    };
    for (size_t i = 0; i < HD__COUNT(cases); i++)
        ck_refused(ops_of()->open(NULL, &cases[i].settings, &start, &m, &err), cases[i].code, cases[i].words);
    close(fd);
    scratch_finish(&s);
}
END_TEST

/* /proc of the test, and the GPUs of its driver: the suite runs with FAKE_NVML=gpus=2,ecc=3,throttle=0x44. */
START_TEST(machine)
{
    static const char *const lines[] = {
        "heddle_machine_cpu_seconds_total{mode=\"user\"} 12.5",
        "heddle_machine_cpu_seconds_total{mode=\"steal\"} 0.08",
        "heddle_machine_memory_available_bytes 2048000",
        "heddle_machine_network_bytes_total{device=\"eth0\",direction=\"receive\"} 123456789012",
        "heddle_machine_network_bytes_total{device=\"eth0\",direction=\"transmit\"} 42",
        "heddle_gpu_utilization_ratio{gpu=\"1\"} 0.91",
        "heddle_gpu_memory_used_bytes{gpu=\"0\"} 21474836480",
        "heddle_gpu_power_watts{gpu=\"0\"} 650.5",
        "heddle_gpu_temperature_celsius{gpu=\"0\"} 71",
        "heddle_gpu_clock_hertz{gpu=\"0\"} 1755000000",
        "heddle_gpu_throttled{gpu=\"0\",reason=\"power_cap\"} 1",
        "heddle_gpu_throttled{gpu=\"0\",reason=\"hardware_thermal\"} 1",
        "heddle_gpu_throttled{gpu=\"0\",reason=\"hardware_slowdown\"} 0",
        "heddle_gpu_ecc_errors_total{gpu=\"0\",kind=\"uncorrected\"} 3",
        "heddle_gpu_ecc_errors_total{gpu=\"1\",kind=\"corrected\"} 7",
    };
    struct scratch s;
    char *text = NULL, why[256];
    size_t bytes;
    scratch_init(&s);
    ck_assert_int_eq(mkdir(scratch_path(&s, "net"), 0700), 0);
    const struct {
        const char *name, *text;
    } files[] = {{"stat", "cpu  1250 1 2 3 4 5 6 8 0 0\ncpu0 1 1\n"},
                 {"meminfo", "MemTotal: 9 kB\nMemFree: 8 kB\nMemAvailable:    2000 kB\n"},
                 {"net/dev", "Inter-|   Receive\n face |bytes\n    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n"
                             "  eth0:123456789012 1 0 0 0 0 0 0 42 1 0 0 0 0 0 0\n"}};
    for (size_t i = 0; i < HD__COUNT(files); i++) {
        FILE *f = fopen(scratch_path(&s, files[i].name), "w");
        fputs(files[i].text, f);
        fclose(f);
    }
    struct nvml *gpus = nvml_open(why);
    ck_assert_msg(gpus != NULL, "%s", why);
    FILE *out = open_memstream(&text, &bytes);
    machine_print(out, scratch_path(&s, "."), gpus);
    fclose(out);
    for (size_t i = 0; i < HD__COUNT(lines); i++)
        ck_assert_msg(has(text, lines[i]), "no line '%s' in\n%s", lines[i], text);
    ck_assert(!strstr(text, "\"lo\"") && !strstr(text, "disk"));
    free(text);
    out = open_memstream(&text, &bytes);
    machine_print(out, scratch_path(&s, "nowhere"), NULL);
    fclose(out);
    ck_assert_str_eq(text, "");
    free(text);
    nvml_close(gpus);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    const struct scratch_test tests[] = {
        {"machine", machine}, {"text", text}, {"textfile", textfile}, {"refusals", refusals}, {NULL, NULL}};
    return scratch_run("prometheus", tests);
}
