/* Opening and closing. */
#include "internal.h"

/* NCCL reads its variables once, at its first call; what one job's transports set is for all of them. */
static struct {
    struct nc_variable variables[NC_N_VARIABLES];
    int32_t n, opened;
} process;

void nc_enter(const struct hd_comm *c)
{
    static _Thread_local void *here;
    if (here == c->context)
        return;
    c->api.cuCtxSetCurrent(c->context);
    here = c->context;
}

/* Other devices of this kind have names that begin so; one brings its driver: option `driver`. */
static int32_t check_world(const struct hd_world *w, struct hd_error *err)
{
    int known = w->struct_size >= offsetof(struct hd_world, device) + sizeof w->device;
    if (!known || !w->device || strncmp(w->device, "cuda", 4))
        return hd_fail(err, HD_E_INVALID,
                       "nccl moves memory of NVIDIA GPUs, and the device here is %s: set device: {use: cuda}, or "
                       "another transport (comm: {use: shm})",
                       known && w->device ? w->device : "the host");
    if (!w->stream)
        return hd_fail(err, HD_E_INVALID, "nccl: device %s has no stream for transports", w->device);
    return HD_OK;
}

static int same(const struct nc_variable *variables, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (n != process.n || strcmp(variables[i].name, process.variables[i].name) ||
            strcmp(variables[i].value, process.variables[i].value))
            return 0;
    return n == process.n;
}

static int32_t set_variables(const struct hd_host *host, const struct nc_settings *s, struct hd_error *err)
{
    struct nc_variable variables[NC_N_VARIABLES];
    int32_t n = nc_variables(s, variables, err), rc = HD_OK;
    if (n < 0)
        return n;
    if (process.opened)
        return same(variables, n) ? HD_OK
                                  : hd_fail(err, HD_E_INVALID,
                                            "nccl: two transports of a job have different settings, and "
                                            "NCCL reads them once a process: make them the same");
    if (n && host->struct_size < offsetof(struct hd_host, set_variable) + sizeof host->set_variable)
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: %s cannot be set: this heddle is too old for that",
                       variables[0].name);
    for (int32_t i = 0; i < n && !rc; i++)
        rc = host->set_variable(variables[i].name, variables[i].value, err);
    memcpy(process.variables, variables, sizeof variables);
    process.n = n;
    process.opened = !rc;
    return rc;
}

static int32_t open_device(struct hd_comm *c, struct hd_error *err)
{
    int32_t rc = nc_cu_check(&c->api, c->api.cuCtxGetCurrent(&c->context), "cuCtxGetCurrent", err);
    if (!rc && !c->context)
        rc = hd_fail(err, HD_E_INVALID, "nccl: this thread has no CUDA device: the device has to be opened first");
    if (!rc)
        rc = nc_cu_check(&c->api, c->api.cuMemAlloc_v2(&c->scratch, NC_SCRATCH), "memory for barriers", err);
    return rc;
}

static int32_t start(struct hd_comm *c, struct hd_error *err)
{
    int32_t rc = check_world(&c->world, err);
    if (!rc)
        rc = nc_driver_open(&c->api, c->settings.driver, err);
    if (!rc)
        rc = nc_driver_works(&c->api, err);
    if (!rc)
        rc = set_variables(c->host, &c->settings, err);
    if (!rc)
        rc = nc_library_open(&c->api, c->settings.library, err);
    if (!rc)
        rc = nc_config(&c->settings, c->api.version, &c->config, err);
    c->settings.registered = nc_registers(&c->settings, c->api.version);
    if (!rc)
        rc = open_device(c, err);
    return rc ? rc : nc_listen(c, err);
}

int32_t nc_open(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                struct hd_error *err)
{
    struct hd_comm *c = host->alloc(sizeof *c);
    size_t known = world->struct_size < sizeof *world ? world->struct_size : sizeof *world;
    int32_t rc;
    if (!c)
        return hd_fail(err, HD_E_NOMEM, "nccl: no memory");
    c->host = host;
    rq_init(&c->ops, host, sizeof(struct nc_op), 0);
    c->settings = *(const struct nc_settings *)settings;
    memcpy(&c->world, world, known);
    c->error = c->failure = (struct hd_error)HD_ERROR_INIT;
    pthread_mutex_init(&c->lock, NULL);
    snprintf(c->key, sizeof c->key, "%s/nccl/note/", world->instance);
    if ((rc = start(c, err))) {
        nc_close(c);
        return rc;
    }
    if (c->world.rank == 0)
        host->log(HD_LOG_INFO, "nccl", "NCCL %d.%d.%d", c->api.version / 10000, c->api.version / 100 % 100,
                  c->api.version % 100);
    *comm = c;
    return HD_OK;
}

void nc_close(struct hd_comm *c)
{
    if (!c)
        return;
    if (c->context)
        nc_enter(c);
    nc_stop_listening(c);
    while (c->groups)
        nc_group_free((struct hd_comm_group *)c->groups);
    if (c->base)
        nc_queues_end(c, NULL, !c->stopped);
    nc_ops_free(c);
    if (c->scratch)
        c->api.cuMemFree_v2(c->scratch);
    pthread_mutex_destroy(&c->lock);
    c->host->free(c->counts);
    c->host->free(c);
}
