/* heddle k8s: prints a manifest for Kubernetes: an Indexed Job whose pods are machines, and what they need. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/warnings/warnings.h"

struct k8s_request {
    const char *pods_text, *image, *storage, *folder, *name;
    const char *nodes;         /* launch.nodes, where the job says it */
    int32_t pods, ranks, gpus; /* ranks and GPUs: of a pod */
};

/* A name as Kubernetes wants it; of the job's, what is not allowed in one becomes '-'. What YAML takes for a boolean or
 * for null gets what names that begin with a digit get. */
static void make_name(const char *job, char name[48])
{
    static const char *const values[] = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"};
    size_t n = isalpha((unsigned char)*job) ? 0 : (size_t)snprintf(name, 48, "heddle-");
    for (; *job && n < 40; job++)
        if (isalnum((unsigned char)*job))
            name[n++] = (char)tolower((unsigned char)*job);
        else if (n && name[n - 1] != '-')
            name[n++] = '-';
    while (n && name[n - 1] == '-')
        n--;
    name[n] = 0;
    for (size_t i = 0; i < HD__COUNT(values) && n; i++)
        if (!strcmp(name, values[i]))
            n = (size_t)snprintf(name, 48, "heddle-%s", values[i]);
}

/* A word of a container's command as a scalar of YAML. Kubernetes makes one $ of two, and replaces $(NAME). */
static void add_word(struct hd__text *out, const char *word)
{
    hd__text_add(out, "\"");
    for (; *word; word++)
        if (iscntrl((unsigned char)*word))
            hd__text_add(out, "\\x%02x", (unsigned)*word);
        else
            hd__text_add(out, "%s%c", *word == '$' ? "$" : strchr("\"\\", *word) ? "\\" : "", *word);
    hd__text_add(out, "\"");
}

static void add_service(struct hd__text *out, const struct k8s_request *r)
{
    hd__text_add(out,
                 "apiVersion: v1\n"
                 "kind: Service\n"
                 "metadata:\n"
                 "  name: %s\n"
                 "spec: # headless: each pod has a name of its own, %s-0.%s\n"
                 "  clusterIP: None\n"
                 "  publishNotReadyAddresses: true\n"
                 "  selector:\n"
                 "    job-name: %s\n"
                 "---\n",
                 r->name, r->name, r->name, r->name);
}

static void add_volume(struct hd__text *out, const struct k8s_request *r)
{
    hd__text_add(out,
                 "apiVersion: v1\n"
                 "kind: PersistentVolumeClaim\n"
                 "metadata:\n"
                 "  name: %s\n"
                 "spec: # the job file, its data, and the runs; all pods see it\n"
                 "  accessModes: [%s]\n"
                 "  resources:\n"
                 "    requests:\n"
                 "      storage: %s\n"
                 "---\n",
                 r->name, r->pods > 1 ? "ReadWriteMany" : "ReadWriteOnce", r->storage);
}

/* Exit code 3 is that of a pod that was told to go and has saved: another takes its place, however often. */
static void add_job(struct hd__text *out, const struct k8s_request *r, const struct hd__job *job)
{
    hd__text_add(out,
                 "apiVersion: batch/v1\n"
                 "kind: Job\n"
                 "metadata:\n"
                 "  name: %s\n"
                 "spec:\n"
                 "  completionMode: Indexed\n"
                 "  completions: %d\n"
                 "  parallelism: %d\n"
                 "  backoffLimit: %lld # launch.restarts, for each pod\n",
                 r->name, r->pods, r->pods, (long long)job->launch_restarts * r->pods);
    if (job->launch_time_limit > 0)
        hd__text_add(out, "  activeDeadlineSeconds: %lld\n", (long long)job->launch_time_limit);
    hd__text_add(out, "  podFailurePolicy:\n"
                      "    rules:\n"
                      "    - action: FailJob # refused: so it would be again\n"
                      "      onExitCodes:\n"
                      "        containerName: heddle\n"
                      "        operator: In\n"
                      "        values: [2]\n"
                      "    - action: Ignore # stopped, and its state is saved\n"
                      "      onExitCodes:\n"
                      "        containerName: heddle\n"
                      "        operator: In\n"
                      "        values: [3]\n"
                      "    - action: Ignore # its machine was taken away\n"
                      "      onPodConditions:\n"
                      "      - type: DisruptionTarget\n"
                      "        status: 'True'\n");
}

/* Each pod is a machine with an agent, which knows its number from JOB_COMPLETION_INDEX. */
static void add_environment(struct hd__text *out, const struct k8s_request *r)
{
    char count[32];
    snprintf(count, sizeof count, "%d", r->pods);
    hd__text_add(out, "        env:\n        - {name: NNODES, value: '%s'}\n", r->nodes ? r->nodes : count);
    if (r->pods > 1)
        hd__text_add(out,
                     "        - {name: MASTER_ADDR, value: %s-0.%s}\n"
                     "        - {name: MASTER_PORT, value: '29400'}\n"
                     "        - name: HEDDLE_SECRET\n"
                     "          valueFrom:\n"
                     "            secretKeyRef: {name: %s, key: secret}\n",
                     r->name, r->name, r->name);
}

static void add_pod(struct hd__text *out, const struct k8s_request *r, const struct hd__cli_job_arguments *arguments)
{
    hd__text_add(out,
                 "  template:\n"
                 "    spec:\n"
                 "      subdomain: %s\n"
                 "      restartPolicy: Never\n"
                 "      terminationGracePeriodSeconds: 120 # to finish a step and save\n"
                 "      containers:\n"
                 "      - name: heddle\n"
                 "        image: %s\n"
                 "        workingDir: %s\n"
                 "        command: [heddle, train, ",
                 r->name, r->image, r->folder);
    add_word(out, arguments->file);
    for (size_t i = 0; i < arguments->n_overrides; i++) {
        hd__text_add(out, ", ");
        add_word(out, arguments->overrides[i]);
    }
    hd__text_add(out, "]\n");
    add_environment(out, r);
    if (r->gpus)
        hd__text_add(out, "        resources:\n          limits: {nvidia.com/gpu: %d}\n", r->gpus);
    hd__text_add(out,
                 "        volumeMounts:\n"
                 "        - {name: work, mountPath: %s}\n"
                 "        - {name: shm, mountPath: /dev/shm}\n"
                 "      volumes:\n"
                 "      - name: work\n"
                 "        persistentVolumeClaim: {claimName: %s}\n"
                 "      - name: shm # 64 MB, as it is without, are too little for comm-shm\n"
                 "        emptyDir: {medium: Memory}\n",
                 r->folder, r->name);
}

static void print_manifest(const struct k8s_request *r, const struct hd__job *job,
                           const struct hd__cli_job_arguments *arguments)
{
    struct hd__text out = {0};
    hd__text_add(&out, "# Printed by `heddle k8s`: kubectl apply -f THIS-FILE\n");
    if (r->pods > 1)
        hd__text_add(&out,
                     "# The pods' secret, once: kubectl create secret generic %s --from-literal=secret=$(openssl rand "
                     "-hex 32)\n",
                     r->name);
    add_service(&out, r);
    add_volume(&out, r);
    add_job(&out, r, job);
    add_pod(&out, r, arguments);
    fputs(out.at, stdout);
    hd__text_free(&out);
}

/* Words that go into the manifest as they are. */
static int check_words(const struct k8s_request *r)
{
    const struct {
        const char *flag, *value, *allowed;
    } rows[] = {{"--image", r->image, "-._:/@"}, {"--folder", r->folder, "-._/"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const char *at = rows[i].value;
        while (isalnum((unsigned char)*at) || (*at && strchr(rows[i].allowed, *at)))
            at++;
        if (*at || !isalnum((unsigned char)rows[i].value[*rows[i].value == '/']))
            return hd__cli_usage_error(&hd__command_k8s, "%s %s: letters, digits and %s are wanted", rows[i].flag,
                                       rows[i].value, rows[i].allowed);
    }
    const char *name = r->image, *slash = strchr(name, '/');
    size_t host = slash ? (size_t)(slash - name) : 0; /* a registry's, which may have capitals, as a tag may */
    if (memchr(name, '.', host) || memchr(name, ':', host))
        name += host;
    for (size_t i = 0; i < strcspn(name, ":@"); i++)
        if (isupper((unsigned char)name[i]))
            return hd__cli_usage_error(&hd__command_k8s,
                                       "--image %s: the name of an image is in lower case, else Kubernetes refuses it: "
                                       "only a registry's host and a tag may have capitals",
                                       r->image);
    char *unit;
    double size = isdigit((unsigned char)*r->storage) ? strtod(r->storage, &unit) : 0;
    const char *const units[] = {"", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    size_t u = 0;
    while (size > 0 && u < HD__COUNT(units) && strcmp(unit, units[u]) != 0)
        u++;
    if (!(size > 0) || u == HD__COUNT(units) ||
        size * (u < 7 ? pow(1000, (double)u) : pow(1024, (double)u - 6)) < 0x1p20)
        return hd__cli_usage_error(&hd__command_k8s,
                                   "--storage %s: a size of 1Mi or more is wanted, with its unit, as 100Gi or 2T",
                                   r->storage);
    if (r->folder[0] != '/')
        return hd__cli_usage_error(&hd__command_k8s, "--folder %s: a path in the pods is wanted, as /work", r->folder);
    return HD__EXIT_DONE;
}

static int parse_pods(struct k8s_request *r)
{
    char *end = "";
    long pods = r->pods_text ? strtol(r->pods_text, &end, 10) : 1;
    r->pods = (int32_t)pods;
    if (*end || pods < 1 || pods > 65536 || (r->pods_text && !isdigit((unsigned char)*r->pods_text)))
        return hd__cli_usage_error(&hd__command_k8s, "--pods %s: a number of pods is wanted", r->pods_text);
    return HD__EXIT_DONE;
}

/* ---- paths: what is not below --folder is the pod's own, and ends with it */

/* By the words alone: the pods' folders are not here. */
static int is_in_volume(const struct k8s_request *r, const char *path)
{
    size_t length = strlen(r->folder);
    while (length > 1 && r->folder[length - 1] == '/')
        length--;
    if (path[0] == '/') {
        if (strncmp(path, r->folder, length) != 0 || (path[length] && path[length] != '/' && length > 1))
            return 0;
        path += length;
    }
    for (int depth = 0; *path;) {
        size_t n = strcspn(path, "/");
        depth += n == 2 && !strncmp(path, "..", 2) ? -1 : n > 0 && !(n == 1 && *path == '.');
        if (depth < 0)
            return 0;
        path += n + (path[n] == '/');
    }
    return 1;
}

static int is_outside(const struct k8s_request *r, const char *path)
{
    return path && *path != '{' && !strstr(path, "://") && strncmp(path, "/dev/", 5) != 0 && !is_in_volume(r, path);
}

static int is_among(const char *key, const char *const *keys, size_t n)
{
    size_t i = 0;
    while (i < n && strcmp(key, keys[i]))
        i++;
    return i < n;
}

static int is_output(const char *key)
{
    static const char *const keys[] = {"checkpoint.dir",      "metrics.jsonl", "metrics.blocks",
                                       "metrics.tensorboard", "metrics.trace", "metrics.trace.file"};
    return is_among(key, keys, HD__COUNT(keys)) || (!strncmp(key, "metrics.sinks.", 14) && hd__ends_with(key, ".dir"));
}

static int is_input(const char *key)
{
    static const char *const keys[] = {"data.tokenizer", "model.from", "comm.tune"};
    return is_among(key, keys, HD__COUNT(keys));
}

/* Inputs may lie in the image, too. */
static void warn_input(const struct k8s_request *r, struct hd__job *job, const char *key, const char *path)
{
    if (is_outside(r, path))
        hd__log(HD_LOG_WARN, NULL,
                "%s: %s: %s is not in the volume, which pods see at %s (--folder): they find it only if the image "
                "has it",
                hd__job_where(job, key), key, path, r->folder);
}

/* A sink that serves metrics. */
static void warn_address(struct hd__job *job, const struct hd__job_value *address)
{
    int table = (int)(strlen(address->path) - strlen("address"));
    const struct hd__job_value *port =
        hd__job_value_get(job, hd__arena_format(&job->arena, "%.*sport", table, address->path));
    if (port && strcmp(port->text, "-1") != 0 && (!strncmp(address->text, "127.", 4) || !strcmp(address->text, "::1")))
        hd__log(HD_LOG_WARN, NULL, "%s: %s: %s is inside the pod, where Prometheus cannot scrape it: say 0.0.0.0",
                hd__job_where(job, address->path), address->path, address->text);
}

static int check_paths(const struct k8s_request *r, const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    struct hd_error err = HD_ERROR_INIT;
    for (uint32_t i = 0; i < job->values.count; i++) {
        const struct hd__job_value *v = &job->values.at[i];
        const char *path = !strcmp(v->path, "metrics.trace") ? job->trace.file : v->text;
        if (is_input(v->path))
            warn_input(r, job, v->path, path);
        if (!strcmp(v->path, "data.cache") && is_outside(r, path))
            hd__log(HD_LOG_WARN, NULL,
                    "%s: data.cache: %s is not in the volume, which pods see at %s (--folder): each pod tokenizes for "
                    "itself, and again after a restart: name a path below it",
                    hd__job_where(job, v->path), path, r->folder);
        if (!strncmp(v->path, "metrics.sinks.", 14) && hd__ends_with(v->path, ".address"))
            warn_address(job, v);
        if (!is_output(v->path) || !is_outside(r, path))
            continue;
        hd__job_fail(job, v->path, &err,
                     "%s: %s is not in the volume, which pods see at %s (--folder), and would be lost with its pod: "
                     "name a path below it, as relative ones are%s",
                     v->path, path, r->folder, strcmp(v->path, "checkpoint.dir") ? "" : ", or an s3:// URL");
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    const struct hd__sources *const parts[] = {&job->train, &job->val, &job->test};
    static const char *const keys[] = {"data.train", "data.val", "data.test"};
    for (size_t k = 0; k < HD__COUNT(parts); k++)
        for (uint64_t i = 0; i < parts[k]->count; i++)
            warn_input(r, job, keys[k], parts[k]->at[i].path);
    return HD__EXIT_DONE;
}

/* Does the job fit these pods? */
static int check_job(struct k8s_request *r, const struct hd__cli_job_arguments *arguments, const struct hd__compiled *c)
{
    if (hd__cli_check_batch(&hd__command_k8s, arguments, c))
        return HD__EXIT_REFUSED;
    if (arguments->file[0] == '/' || !is_in_volume(r, arguments->file))
        return hd__cli_usage_error(&hd__command_k8s, "%s: name the job as the pods see it, below --folder",
                                   arguments->file);
    const struct hd__job *job = c->job;
    const struct hd__job_value *nodes = hd__job_value_get(job, "launch.nodes");
    r->nodes = nodes && strcmp(nodes->origin, "default") != 0 ? job->launch_nodes : NULL;
    if (r->nodes && r->pods_text && r->pods != job->nodes_max)
        return hd__cli_usage_error(&hd__command_k8s, "--pods %d: launch.nodes is %s: make them equal, or leave one out",
                                   r->pods, r->nodes);
    if (job->launch_rendezvous)
        return hd__cli_usage_error(&hd__command_k8s,
                                   "launch.rendezvous is %s, and pods meet at the first by the Service: leave it out",
                                   job->launch_rendezvous);
    r->pods = r->nodes ? job->nodes_max : r->pods;
    r->ranks = c->mesh.ranks / job->nodes_max;
    r->gpus = strcmp(c->device_choice.component->name, "cpu") != 0 ? r->ranks : 0;
    return HD__EXIT_DONE;
}

static int run(int argc, char **argv)
{
    struct k8s_request r = {.image = "heddle:latest", .storage = "100Gi", .folder = "/work"};
    const struct hd__cli_flag flags[] = {{"--pods", &r.pods_text, NULL},
                                         {"--image", &r.image, NULL},
                                         {"--storage", &r.storage, NULL},
                                         {"--folder", &r.folder, NULL}};
    struct hd__cli_job_arguments arguments;
    struct hd__cli_job loaded = {0}, all = {0};
    char name[48];
    int code = hd__cli_job_arguments(&hd__command_k8s, argc, argv, flags, HD__COUNT(flags), &arguments);
    code = code ? code : parse_pods(&r);
    code = code ? code : check_words(&r);
    if (!code)
        code = hd__cli_load_job(&arguments, 0, &loaded);
    code = code ? code : check_job(&r, &arguments, loaded.compiled);
    code = code ? code : check_paths(&r, loaded.compiled);
    if (!code && r.pods > 1)
        code = hd__cli_check_machines(&arguments, r.pods, r.ranks, &all);
    if (!code) {
        make_name(loaded.job->name, name);
        r.name = name;
        hd__cli_print_warnings(&arguments, r.pods > 1 ? &all : &loaded);
        print_manifest(&r, loaded.job, &arguments);
    }
    hd__cli_unload_job(&all);
    hd__cli_unload_job(&loaded);
    return code;
}

const struct hd__command hd__command_k8s = {
    .name = "k8s",
    .usage = "JOB [key=value ...] [--pods N] [--image IMAGE] [--storage SIZE] [--folder PATH]",
    .summary = "print a manifest for Kubernetes that trains a job",
    .help =
        "Prints an Indexed Job, a headless Service by which its pods find each other, and a claim for the volume that\n"
        "has the job file, its data and the runs. A pod that saved and ended because it had to (exit code 3), or "
        "whose\n"
        "machine was taken away, is replaced; a failure counts (launch.restarts for each pod); what is refused ends\n"
        "the Job. The Containerfile of heddle's sources makes the image.\n\n"
        "  --pods N         so many machines (launch.nodes), each with the ranks of the job as it is written\n"
        "  --image IMAGE    heddle:latest\n"
        "  --storage SIZE   of the volume: 100Gi\n"
        "  --folder PATH    where the pods see the volume, and the folder that JOB is named from: /work\n",
    .example = "  heddle k8s job.yaml launch.restarts=3 --pods 8 > k8s.yaml\n"
               "  kubectl apply -f k8s.yaml\n",
    .run = run,
};
