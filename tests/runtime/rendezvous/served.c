#include "tests/runtime/rendezvous/served.h"

#include <check.h>

#include "core/base/base.h"

struct hd__server *server;
struct hd__server_options server_options;

void serve(int32_t size, double dead_after)
{
    struct hd_error err = HD_ERROR_INIT;
    server_options =
        (struct hd__server_options){.address = "127.0.0.1", .size = size, .rank = -1, .dead_after = dead_after};
    hd__store_secret_generate(server_options.secret);
    ck_assert_msg(hd__server_open(&server_options, &server, &err) == HD_OK, "%s", err.message);
}

struct hd__store_options client_options(int32_t rank)
{
    struct hd__store_options o = {.host = "127.0.0.1",
                                  .port = hd__server_port(server),
                                  .rank = rank,
                                  .size = server_options.size,
                                  .dead_after = server_options.dead_after};
    memcpy(o.secret, server_options.secret, sizeof o.secret);
    return o;
}

struct hd_store *join(int32_t rank)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__store_options o = client_options(rank);
    struct hd_store *store = NULL;
    ck_assert_msg(hd__store_connect(&o, hd__now() + 10, &store, &err) == HD_OK, "%s", err.message);
    return store;
}
