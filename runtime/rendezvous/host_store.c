#include "runtime/rendezvous/host_store.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "runtime/rendezvous/store.h"

static void *host_alloc(size_t bytes)
{
    size_t whole = (HD__MAX(bytes, (size_t)1) + 63) / 64 * 64;
    void *p = aligned_alloc(64, whole);
    return p ? memset(p, 0, whole) : NULL;
}

static const void *no_extension(const char *name)
{
    (void)name;
    return NULL;
}

static int32_t set_variable(const char *name, const char *value, struct hd_error *err)
{
    const char *was = getenv(name);
    if (was && strcmp(was, value))
        hd__log(HD_LOG_WARN, "host", "%s: the job's %s overrides the environment's %s", name, value, was);
    if (setenv(name, value, 1))
        return hd_fail(err, HD_E_INVALID, "cannot set %s: %s", name, strerror(errno));
    return HD_OK;
}

const struct hd_host *hd__store_host_table(void)
{
    static const struct hd_host host = {
        .struct_size = sizeof host,
        .abi_minor = HD_ABI_MINOR,
        .log = hd__log,
        .alloc = host_alloc,
        .free = free,
        .store_put = hd__store_put,
        .store_get = hd__store_get,
        .get_extension = no_extension,
        .set_variable = set_variable,
    };
    return &host;
}
