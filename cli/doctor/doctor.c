/* heddle doctor: what this machine has, and what would keep a job from running. */
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>

#include "cli/doctor/doctor.h"
#include "core/base/option.h"
#include "core/plugin/plugin.h"
#include "runtime/exec/device.h"
#include "service/train/train.h"

void hd__doctor_add(struct hd__doctor *d, int state, const char *group, const char *object, const char *remedy,
                    const char *format, ...)
{
    struct hd__doctor_line line = {.state = state,
                                   .group = hd__strdup(group),
                                   .object = hd__strdup(object),
                                   .remedy = remedy ? hd__strdup(remedy) : NULL};
    char words[1400];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    line.words = hd__strdup(words);
    hd__push(&d->lines, line);
}

/* ---- plug-ins, and those of the job */

/* The reason alone, which begins with the plug-in's name as a message. */
static const char *reason_of(const struct hd__plugin_entry *e)
{
    const char *rest = e->reason ? strstr(e->reason, "machine: ") : NULL;
    return rest ? rest + strlen("machine: ") : e->reason ? e->reason : "it cannot be used";
}

static void check_plugins(struct hd__doctor *d)
{
    struct hd__plugins *registry = hd__plugins_create(NULL);
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__plugin_entry *entries = NULL;
    size_t n = 0;
    if (hd__plugins_add_default_folders(registry, &err))
        hd__doctor_add(d, HD__DOCTOR_BAD, "plugin", "folders", "HEDDLE_PLUGIN_PATH", "%s", err.message);
    else
        hd__plugin_scan(registry, &entries, &n);
    if (!n && !err.code)
        hd__doctor_add(d, HD__DOCTOR_BAD, "plugin", "folders", "set HEDDLE_PLUGIN_PATH to a folder that has some",
                       "no plugins found");
    for (size_t i = 0; i < n; i++)
        if (entries[i].usable)
            hd__doctor_add(d, HD__DOCTOR_OK, "plugin", entries[i].label, NULL, "%s", entries[i].component->summary);
        else
            hd__doctor_add(d, HD__DOCTOR_WARN, "plugin", entries[i].label,
                           "none is needed, unless a job uses this plug-in; then install what it lacks", "%s",
                           reason_of(&entries[i]));
    hd__plugins_destroy(registry);
}

static void check_compiled(struct hd__doctor *d, const struct hd__compiled *c)
{
    struct hd_error err = HD_ERROR_INIT;
    char arena[32];
    int64_t most = 0;
    for (int32_t s = 0; s < c->n_stages; s++)
        most = HD__MAX(most, c->stage[s]->arena_bytes);
    const struct hd__component *device = c->device_choice.component;
    if (hd__plugin_probe(c->plugins, device, &err))
        hd__doctor_add(d, HD__DOCTOR_BAD, "job", "device", "install what it lacks, or choose another by device.use",
                       "%s: %s", device->name, err.message);
    else
        hd__doctor_add(d, HD__DOCTOR_OK, "job", "device", NULL, "%s", device->name);
    for (uint32_t i = 0; i < c->selection->comms.count; i++) {
        const struct hd__component *comm = c->selection->comms.at[i].component;
        if (hd__plugin_probe(c->plugins, comm, &err))
            hd__doctor_add(d, HD__DOCTOR_BAD, "job", "transport",
                           "install what it lacks, or choose another transport by comm.use", "%s: %s", comm->name,
                           err.message);
        else
            hd__doctor_add(d, HD__DOCTOR_OK, "job", "transport", NULL, "%s", comm->name);
    }
    if (hd__exec_check_settings(c, d->ranks < c->mesh.ranks, 1, &err))
        hd__doctor_add(d, HD__DOCTOR_BAD, "job", "settings", "correct the key that the line names", "%s", err.message);
    if (hd__train_check_memory(c, d->ranks, &err))
        hd__doctor_add(d, HD__DOCTOR_BAD, "job", "memory", "heddle plan JOB, for what does fit", "%s", err.message);
    else
        hd__doctor_add(d, HD__DOCTOR_OK, "job", "memory", NULL, "arena of %s for each of %d rank%s here",
                       hd__bytes_text((uint64_t)most, arena), d->ranks, d->ranks == 1 ? "" : "s");
}

/* A job that is resolved; one that does not compile is a line, since the machine may be what it lacks. */
static void check_job(struct hd__doctor *d, struct hd__cli_job *loaded)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text text = {0};
    if (!hd__exec_compile(loaded->job, loaded->plugins, &loaded->compiled, &err)) {
        check_compiled(d, loaded->compiled);
        return;
    }
    if (loaded->job->mistakes.count)
        hd__job_mistakes_text(loaded->job, &text);
    hd__doctor_add(d, HD__DOCTOR_BAD, "job", "compiles", "correct the job file at the place that the line names", "%s",
                   text.at ? text.at : err.message);
    hd__text_free(&text);
}

/* ---- output */

static const char *const states[] = {"ok", "warn", "bad"};

static int is_usable_plugin(const struct hd__doctor_line *l)
{
    return l->state == HD__DOCTOR_OK && !strcmp(l->group, "plugin");
}

/* Plug-ins that can be used are one line. */
static void print_text(const struct hd__doctor *d, const uint32_t count[3])
{
    struct hd__text text = {0};
    uint32_t usable = 0;
    int width = 0;
    for (uint32_t i = 0; i < d->lines.count; i++)
        if (!is_usable_plugin(&d->lines.at[i]))
            width = HD__MAX(width, (int)strlen(d->lines.at[i].object));
    for (uint32_t i = 0; i < d->lines.count; i++) {
        const struct hd__doctor_line *l = &d->lines.at[i];
        int is_usable = is_usable_plugin(l);
        usable += (uint32_t)is_usable;
        if (!is_usable)
            hd__text_add(&text, "%-5s %-10s  %-*s  %s\n", states[l->state], l->group, width, l->object, l->words);
        if (l->remedy)
            hd__text_add(&text, "%-5s %-10s  %-*s  remedy: %s\n", "", "", width, "", l->remedy);
    }
    hd__text_add(&text, "%-5s %-10s  %u can be used (`heddle plugins` lists them)\n", states[HD__DOCTOR_OK], "plugin",
                 usable);
    hd__text_add(&text, "%u ok, %u to look at, %u bad\n", count[0], count[1], count[2]);
    hd__text_print(&text, stdout);
}

static void print_json(const struct hd__doctor *d, const uint32_t count[3])
{
    json_t *lines = json_array(), *root = json_pack("{s:b,s:o}", "ok", !count[HD__DOCTOR_BAD], "lines", lines);
    for (uint32_t i = 0; i < d->lines.count; i++) {
        const struct hd__doctor_line *l = &d->lines.at[i];
        json_array_append_new(lines, json_pack("{s:s,s:o,s:s,s:s,s:o}", "group", l->group, "object",
                                               hd__json_text(l->object), "state", states[l->state], "words",
                                               hd__printable(l->words), "remedy", hd__json_text(l->remedy)));
    }
    hd__cli_print_json(root, JSON_INDENT(1));
}

static int finish(struct hd__doctor *d, int json)
{
    uint32_t count[HD__COUNT(states)] = {0};
    for (uint32_t i = 0; i < d->lines.count; i++)
        count[d->lines.at[i].state]++;
    if (json)
        print_json(d, count);
    else
        print_text(d, count);
    return count[HD__DOCTOR_BAD] ? HD__EXIT_FAILED : HD__EXIT_DONE;
}

/* ---- the command */

/* Ranks of this machine: as the launcher says, else as the job does. */
static int load(int has_job, const struct hd__cli_job_arguments *a, struct hd__doctor *d, struct hd__cli_job *loaded)
{
    struct hd__launch_env env;
    struct hd_error err = HD_ERROR_INIT;
    int found = 0, code;
    d->ranks = 1;
    if (hd__launch_detect(&env, &found, &err)) /* a line of its own says why */
        found = 0;
    code = has_job ? hd__cli_resolve_job(a, found ? env.size : 0, loaded) : HD__EXIT_DONE;
    if (found)
        d->ranks = env.local_size;
    else if (has_job && !code)
        d->ranks = (int32_t)loaded->job->ranks;
    return code;
}

static int run(int argc, char **argv)
{
    struct hd__doctor d = {.ranks = 1};
    struct hd__cli_job loaded = {0};
    struct hd__cli_job_arguments a = {0};
    int json = 0, has_job = 0, code = HD__EXIT_DONE;
    const struct hd__cli_flag flags[] = {{.name = "--json", .set = &json}};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else
            has_job = 1;
    if (has_job)
        code = hd__cli_job_arguments(&hd__command_doctor, argc, argv, flags, HD__COUNT(flags), &a);
    if (!code)
        code = load(has_job, &a, &d, &loaded);
    if (!code) {
        hd__doctor_machine(&d);
        hd__doctor_devices(&d);
        hd__doctor_networks(&d);
        hd__doctor_rendezvous(&d, loaded.job);
        check_plugins(&d);
        if (has_job)
            check_job(&d, &loaded);
        code = finish(&d, json);
    }
    hd__cli_unload_job(&loaded);
    for (uint32_t i = 0; i < d.lines.count; i++) {
        free(d.lines.at[i].group);
        free(d.lines.at[i].object);
        free(d.lines.at[i].words);
        free(d.lines.at[i].remedy);
    }
    hd__free_array(&d.lines);
    return code;
}

const struct hd__command hd__command_doctor = {
    .name = "doctor",
    .usage = "[JOB [key=value ...]] [--json]",
    .summary = "check this machine: limits, devices, networks, plug-ins, rendezvous",
    .help =
        "Prints a line for each thing that a job depends on: ok, warn (works, and could be better) or bad, with a\n"
        "remedy: processor, clocks, the cgroup's CPU quota and memory, huge pages, the limits of open files, locked\n"
        "memory and /dev/shm, GPUs with their links, networks, every plug-in, and where ranks meet: the variables of\n"
        "torchrun, srun or mpirun, whether MASTER_ADDR resolves and answers, the secret. With a job also its device,\n"
        "its transports, and whether it fits into memory, for as many ranks as it has here. Run it on each machine,\n"
        "under the launcher or in the shell that will start it. Exit code 1 where a line is bad, 2 where the job file\n"
        "is refused.\n\n"
        "  --json    {\"ok\": ..., \"lines\": [{group, object, state, words, remedy}]}\n",
    .example = "  heddle doctor\n  MASTER_ADDR=node1 MASTER_PORT=29400 heddle doctor examples/two-ranks.yaml\n",
    .run = run};
