/* Opening cuDNN, and its words for what went wrong. */
#include "attention/cudnn_attention.h"
#include <dlfcn.h>
#include <stddef.h>

int32_t dnn_open(struct dnn_api *api, const char *path, struct hd_error *err)
{
    static const struct {
        size_t at;
        const char *name;
    } symbols[] = {
#define ROW(result, name, arguments) {offsetof(struct dnn_api, name), "cudnn" #name},
        CU_DNN_FUNCTIONS(ROW)
#undef ROW
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return hd_fail(err, HD_E_NOTFOUND, "cuDNN was not found: %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return hd_fail(err, HD_E_UNSUPPORTED, "%s has no %s: cuDNN 9.10 or later is needed", path, symbols[i].name);
        memcpy((char *)api + symbols[i].at, &found, sizeof found);
    }
    api->version = api->GetVersion();
    if (api->version < CU_DNN_LEAST || api->version >= CU_DNN_BELOW)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s is cuDNN %zu.%zu, a 9 from 9.10 on is needed", path,
                       api->version / 10000, api->version / 100 % 100);
    return HD_OK;
}

static int32_t code_of(int status)
{
    if (status == DNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == DNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return HD_E_NOMEM;
    /* These codes mean that cuDNN does not support the graph, not that something failed. */
    return status >= DNN_STATUS_BAD_PARAM && status < DNN_STATUS_INTERNAL_ERROR ? HD_E_UNSUPPORTED : HD_E_IO;
}

int32_t dnn_fail(const struct dnn_api *api, int status, const char *what, struct hd_error *err)
{
    char words[256] = "";
    if (status == DNN_STATUS_SUCCESS)
        return HD_OK;
    api->GetLastErrorString(words, sizeof words);
    words[strcspn(words, "\n")] = 0;
    if (err)
        err->native = status;
    return hd_fail(err, code_of(status), "cuDNN: %s: %s%s%s", what, api->GetErrorString(status), *words ? ": " : "",
                   words);
}
