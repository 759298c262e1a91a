/* Opening NCCL and the driver, and their words for what went wrong. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

/* ---- symbols */

struct symbol {
    size_t at; /* in struct nc_api */
    const char *name;
    int64_t needed;
};

/* Pointers to functions come from dlsym as pointers to data. */
static void put(struct nc_api *api, size_t at, void *function)
{
    memcpy((char *)api + at, &function, sizeof function);
}

static int32_t find_all(struct nc_api *api, void *library, const char *path, const struct symbol *symbols, size_t n,
                        struct hd_error *err)
{
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found && symbols[i].needed)
            return hd_fail(err, HD_E_UNSUPPORTED, "nccl: %s has no %s: NCCL 2.18 or later is needed", path,
                           symbols[i].name);
        put(api, symbols[i].at, found);
    }
    return HD_OK;
}

int32_t nc_library_open(struct nc_api *api, const char *path, struct hd_error *err)
{
    static const struct symbol symbols[] = {
#define ROW(required, name, result, arguments) {offsetof(struct nc_api, name), "nccl" #name, required},
        NC_NCCL(ROW)
#undef ROW
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int32_t rc;
    if (!library)
        return hd_fail(err, HD_E_NOTFOUND,
                       "nccl: %s: install NCCL, or say where it is by comm: {use: nccl, library: PATH}", dlerror());
    if ((rc = find_all(api, library, path, symbols, sizeof symbols / sizeof *symbols, err)))
        return rc;
    if ((rc = nc_check(api, NULL, api->GetVersion(&api->version), "ncclGetVersion", err)))
        return rc;
    if (api->version < NC_VERSION(2, 18, 0))
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: %s is NCCL %d.%d, 2.18 or later is needed", path,
                       api->version / 10000, api->version / 100 % 100);
    return HD_OK;
}

int32_t nc_driver_open(struct nc_api *api, const char *path, struct hd_error *err)
{
    static const struct symbol symbols[] = {
#define ROW(name, arguments) {offsetof(struct nc_api, name), #name, 1},
        NC_DRIVER(ROW)
#undef ROW
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hd_fail(err, HD_E_NOTFOUND, "no NVIDIA driver here (%s)", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return hd_fail(err, HD_E_UNSUPPORTED, "%s has no %s: the NVIDIA driver is too old", path, symbols[i].name);
        put(api, symbols[i].at, found);
    }
    return HD_OK;
}

int32_t nc_driver_works(const struct nc_api *api, struct hd_error *err)
{
    int devices = 0, result = api->cuInit(0);
    if (!result)
        result = api->cuDeviceGetCount(&devices);
    if (result)
        return nc_cu_check(api, result, "starting the NVIDIA driver", err);
    return devices ? HD_OK : hd_fail(err, HD_E_NOTFOUND, "nccl: the NVIDIA driver has no GPU");
}

/* Nothing but cuInit answers before the driver runs, in this process itself. */
static int is_running(const struct nc_api *api)
{
    int devices;
    return api->cuDeviceGetCount(&devices) == 0;
}

/* A process that has started the driver cannot fork ranks any more: another one tries. Where the device has started it
 * already, as in a rank, this one does: a child of it could not. */
int32_t nc_driver_tried(const struct nc_api *api, struct hd_error *err)
{
    struct hd_error theirs = HD_ERROR_INIT;
    int pipes[2], status;
    if (is_running(api))
        return nc_driver_works(api, err);
    if (pipe(pipes))
        return hd_fail(err, HD_E_IO, "nccl: pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        nc_driver_works(api, &theirs);
        while (write(pipes[1], &theirs, sizeof theirs) < 0 && errno == EINTR)
            continue;
        raise(SIGKILL); /* nothing else of the process may run here, not even its end */
    }
    close(pipes[1]);
    if (child < 0 || read(pipes[0], &theirs, sizeof theirs) != sizeof theirs)
        hd_fail(&theirs, HD_E_IO, "nccl: the NVIDIA driver could not be tried");
    close(pipes[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    hd_error_copy(err, &theirs);
    return theirs.code;
}

/* ---- errors */

int32_t nc_code(int result)
{
    switch (result) {
    case NC_SUCCESS:
        return HD_OK;
    case NC_ARGUMENT:
    case NC_USAGE:
        return HD_E_INVALID;
    case NC_REMOTE:
        return HD_E_PEER;
    default: /* CUDA, the system, NCCL itself */
        return HD_E_IO;
    }
}

int32_t nc_check(const struct nc_api *api, nc_comm comm, int result, const char *what, struct hd_error *err)
{
    const char *last = result ? api->GetLastError(comm) : NULL;
    if (!result)
        return HD_OK;
    if (err) {
        err->native = result;
        err->scope = result == NC_CUDA ? HD_SCOPE_DEVICE : HD_SCOPE_GROUP;
    }
    return hd_fail(err, nc_code(result), "nccl: %s: %s%s%s", what, api->GetErrorString(result),
                   last && *last ? ": " : "", last ? last : "");
}

int32_t nc_cu_check(const struct nc_api *api, int result, const char *what, struct hd_error *err)
{
    const char *text = NULL;
    if (!result)
        return HD_OK;
    if (err) {
        err->native = result;
        err->scope = HD_SCOPE_DEVICE;
    }
    if (api->cuGetErrorString(result, &text) || !text)
        text = "unknown error";
    return hd_fail(err, result == 2 ? HD_E_NOMEM : HD_E_IO, "nccl: %s: %s (CUDA %d)", what, text, result);
}
