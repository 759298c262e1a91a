/* The host table: what plugins may call. */
#include <stdlib.h>

#include "core/compile/compile.h"

static void host_log(uint32_t level, const char *component, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    hd__log(level, component, "%s", text);
}

static void *host_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1))
        return NULL;
    return memset(p, 0, bytes ? bytes : 1);
}

static void host_free(void *p)
{
    free(p);
}

static int32_t no_store_put(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    (void)store, (void)value, (void)bytes;
    return hd_fail(err, HD_E_UNSUPPORTED, "no rendezvous store in this command (key %s)", key);
}

static int32_t no_store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                            struct hd_error *err)
{
    (void)store, (void)value, (void)bytes, (void)deadline;
    return hd_fail(err, HD_E_UNSUPPORTED, "no rendezvous store in this command (key %s)", key);
}

static const void *no_extension(const char *name)
{
    (void)name;
    return NULL;
}

struct hd_host *hd__host(void)
{
    static struct hd_host host = {
        .struct_size = sizeof host,
        .abi_minor = HD_ABI_MINOR,
        .log = host_log,
        .alloc = host_alloc,
        .free = host_free,
        .store_put = no_store_put,
        .store_get = no_store_get,
        .build = &hd__builder_api,
        .pass = &hd__pass_api,
        .get_extension = no_extension,
    };
    return &host;
}
