#include "core/comm/host.h"

#include <stdlib.h>

#include "core/base/base.h"
#include "core/comm/store.h"

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

const struct hd_host *hd__comm_host(void)
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
    };
    return &host;
}
