#include "tests/runtime/comm/hooked.h"

#include "core/base/option.h"
#include "core/plugin/plugin.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/liveness.h"

const char *hook_folder;
float hook_data[4][4096];

/* Another rank gave up. */
static void on_end(void *user, const char *cause)
{
    struct rank *rank = user;
    rank->ops->abort(rank->comm, cause);
}

int wrap_with(struct rank *rank, const struct hd_hook_ops *ops, const char *name, const void *settings,
              struct hd__flight *flight)
{
    static struct hd_world world;
    static struct hd__comm open[HD__HOOKS_MAX + 1]; /* read until the rank ends */
    static int n_open;
    struct hd__hook_context context = {.host = hd__store_host_table(),
                                       .world = &world,
                                       .flight = flight,
                                       .folder = hook_folder,
                                       .transport = transport_name};
    struct hd__comm *around = &open[n_open++];
    struct hd_error err = HD_ERROR_INIT;
    world =
        (struct hd_world){.struct_size = sizeof world, .rank = rank->rank, .size = rank->size, .store = rank->store};
    *around = (struct hd__comm){.ops = *rank->ops, .comm = rank->comm, .n_hooks = (uint32_t)n_open - 1};
    EXPECT(!hd__comm_hook_wrap(around, ops, name, settings, &context, &err), "%s", err.message);
    rank->ops = &around->ops;
    rank->comm = around->comm;
    hd__store_liveness_notify(hd__store_liveness(rank->store), on_end, rank);
    return 0;
}

int wrap(struct rank *rank, const char *name, const char *words)
{
    static struct hd__arena arena;
    static struct hd__plugins *plugins;
    const struct hd__component *component = NULL;
    struct hd_error err = HD_ERROR_INIT;
    plugins = plugins ? plugins : hd__plugins_create(hd__store_host_table());
    EXPECT(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
    EXPECT(!hd__plugins_add_folder(plugins, TEST_PLUGINS, &err), "%s", err.message);
    EXPECT(!hd__plugin_find(plugins, HD_KIND_HOOK, name, &component, &err), "%s", err.message);
    struct hd__options table = {component->options, component->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, component->settings_size + 1);
    EXPECT(!hd__options_defaults(&table, settings, &arena, &err), "%s", err.message);
    char key[32], value[32];
    for (int used; words && sscanf(words, " %31[^=]=%31s%n", key, value, &used) == 2; words += used) {
        struct hd_option o = hd__option_at(&table, (size_t)hd__option_find(&table, key));
        EXPECT(!hd__option_parse(&o, value, settings, &arena, &err), "%s", err.message);
    }
    return wrap_with(rank, &component->ops.hook, component->name, settings, NULL);
}

int group_of_all(struct rank *rank, const char *name, struct hd_comm_group **group)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t ranks[8];
    for (int32_t i = 0; i < rank->size; i++)
        ranks[i] = i;
    EXPECT(!rank->ops->group(rank->comm, name, ranks, rank->size, group, &err), "%s", err.message);
    return 0;
}

struct hd_comm_call sum(int from, int to, uint64_t count)
{
    return (struct hd_comm_call){.struct_size = sizeof(struct hd_comm_call),
                                 .coll = HD_COLL_ALL_REDUCE,
                                 .dtype = HD_F32,
                                 .redop = HD_SUM,
                                 .send = hook_data[from],
                                 .recv = hook_data[to],
                                 .count = count,
                                 .tag = 7};
}

int32_t run(struct rank *rank, struct hd_comm_group *group, const struct hd_comm_call *call, struct hd_error *err)
{
    hd_request request;
    int32_t code = rank->ops->collective(group, call, &request, err);
    return code ? code : rank->ops->wait(rank->comm, request, hd__now() + rank->timeout, err);
}

int valid_calls(struct rank *rank)
{
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    if (group_of_all(rank, "world", &group))
        return 1;
    for (uint64_t count = 0; count <= 4096; count = count * 3 + 1) {
        struct hd_comm_call call = sum(0, count % 2 ? 1 : 0, count); /* in place too */
        hd_request message[2];
        for (uint64_t i = 0; i < count; i++)
            hook_data[0][i] = (float)rank->rank + 1;
        EXPECT(!run(rank, group, &call, &err), "%s", err.message);
        for (uint64_t i = 0; i < count; i++)
            EXPECT(((float *)call.recv)[i] == (float)(rank->size * (rank->size + 1) / 2), "%g",
                   (double)((float *)call.recv)[i]);
        EXPECT(!rank->ops->recv(group, (rank->rank + 1) % rank->size, 3, hook_data[2], 100, &message[0], &err), "%s",
               err.message);
        EXPECT(!rank->ops->send(group, (rank->rank + rank->size - 1) % rank->size, 3, hook_data[3], 100, &message[1],
                                &err),
               "%s", err.message);
        for (int i = 0; i < 2; i++)
            EXPECT(!rank->ops->wait(rank->comm, message[i], hd__now() + rank->timeout, &err), "%s", err.message);
    }
    return 0;
}
