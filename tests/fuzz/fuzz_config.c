/* libFuzzer over config.json: whatever the bytes are, an error that names the file, or a model whose own config.json is
 * accepted again. tests/fuzz/run builds and runs it. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "heddle/host.h"
#include "heddle/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
const struct hd_plugin *heddle_plugin_v1_fuzz(void);

static char folder[] = "/tmp/heddle-fuzz-XXXXXX", config[64], weights[64];

static void quiet(uint32_t level, const char *component, const char *format, ...)
{
    (void)level, (void)component, (void)format;
}

static void *take(size_t bytes)
{
    return calloc(1, bytes);
}

static const struct hd_host host = {
    .struct_size = sizeof host, .abi_minor = HD_ABI_MINOR, .log = quiet, .alloc = take, .free = free};

static void put(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
}

static void clean(void)
{
    unlink(config);
    unlink(weights);
    rmdir(folder);
}

static void begin(void)
{
    if (!mkdtemp(folder))
        abort();
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    put(weights, "\2\0\0\0\0\0\0\0{}", 10);
    atexit(clean);
}

static struct hd_model *open_model(const struct hd_component *c, struct hd_error *err)
{
    const struct hd_model_ops *ops = c->ops;
    struct hd_model *model = NULL;
    char *settings = calloc(1, c->settings_size);
    for (size_t i = 0; i < c->n_options; i++)
        if (!strcmp(c->options[i].name, "from"))
            memcpy(settings + c->options[i].offset, &(const char *){folder}, sizeof(char *));
    if (ops->open(&host, settings, &model, err) && !strstr(err->message, folder) && !strstr(err->message, "model."))
        abort();
    free(settings);
    return model;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct hd_component *c = heddle_plugin_v1_fuzz()->components[0];
    const struct hd_model_ops *ops = c->ops;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_model *model, *again;
    const char *text;
    if (!config[0])
        begin();
    put(config, data, bytes);
    model = open_model(c, &err);
    if (model && !ops->config_json(model, &text, &err)) {
        put(config, text, strlen(text));
        again = open_model(c, &err);
        if (!again)
            abort();
        ops->close(again);
    }
    ops->close(model);
    return 0;
}
