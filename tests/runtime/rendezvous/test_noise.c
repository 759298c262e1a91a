/* The rendezvous' parser and server against noise. */
#include <check.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/wire.h"
#include "tests/runtime/rendezvous/served.h"
#include "tests/runtime/rendezvous/sockets.h"
#include "tests/suite.h"

static uint64_t state = 88172645463325252u;
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* A frame that the writer made, some of its bytes changed, or cut short: the parser stays within its input and its
 * bounds, and unchanged frames come back as they were. */
START_TEST(parser_noise)
{
    static uint8_t frame[WIRE_FRAME_MAX], value[WIRE_VALUE_MAX];
    for (int k = 0; k < 200000; k++) {
        uint32_t type = 1 + (uint32_t)(draw() % (WIRE_TYPE_COUNT - 1)), key_bytes = (uint32_t)(draw() % 9);
        uint32_t value_bytes = draw() % 50 == 0 ? (uint32_t)(draw() % WIRE_VALUE_MAX) : (uint32_t)(draw() % 40);
        struct hd__frame in = {.type = type,
                               .id = (uint32_t)draw(),
                               .arg = (int32_t)draw(),
                               .key = "a/key/123",
                               .key_bytes = key_bytes,
                               .value = value,
                               .value_bytes = value_bytes},
                         out;
        size_t bytes = hd__store_wire_write(frame, &in), changed = draw() % 4;
        for (size_t c = 0; c < changed; c++)
            frame[draw() % (c ? WIRE_HEADER : bytes)] = (uint8_t)draw();
        size_t have = draw() % 3 ? bytes : draw() % (bytes + 1);
        uint8_t *exact = malloc(have ? have : 1); /* so that a sanitizer sees a read beyond */
        memcpy(exact, frame, have);
        ptrdiff_t used = hd__store_wire_parse(exact, have, &out);
        ck_assert(used >= -1 && used <= (ptrdiff_t)have);
        if (used > 0) {
            ck_assert(out.type > 0 && out.type < WIRE_TYPE_COUNT && out.key_bytes <= WIRE_KEY_MAX);
            ck_assert(out.value_bytes <= WIRE_VALUE_MAX);
            ck_assert((uint8_t *)out.key == exact + WIRE_HEADER);
            ck_assert_uint_eq((size_t)used, WIRE_HEADER + (size_t)out.key_bytes + out.value_bytes);
        }
        if (!changed && have == bytes && used > 0)
            ck_assert(out.id == in.id && out.arg == in.arg && out.type == type && out.value_bytes == value_bytes);
        free(exact);
    }
}
END_TEST

/* A rank by hand. */
static int raw_join(int32_t rank)
{
    struct hd__auth_handshake h = {.rank = (uint32_t)rank, .size = (uint32_t)server_options.size};
    uint8_t hello[WIRE_HELLO], proof[WIRE_TAG], frame[WIRE_HEADER + WIRE_CHALLENGE];
    struct hd__frame f = {.type = WIRE_SAY_HELLO, .value = hello, .value_bytes = WIRE_HELLO};
    int fd = connect_to(hd__server_port(server));
    hd__store_wire_put_u32(hello, h.rank);
    hd__store_wire_put_u32(hello + 4, h.size);
    memcpy(hello + 8, h.rank_nonce, WIRE_NONCE);
    size_t n = hd__store_wire_write(frame, &f);
    ck_assert_int_eq(send(fd, frame, n, MSG_NOSIGNAL), (ssize_t)n);
    ck_assert_int_eq(recv(fd, frame, sizeof frame, MSG_WAITALL), sizeof frame);
    memcpy(h.server_nonce, frame + WIRE_HEADER, WIRE_NONCE);
    hd__auth_prove(server_options.secret, HD__AUTH_RANK, &h, proof);
    n = hd__store_wire_write(frame, &(struct hd__frame){.type = WIRE_PROVE, .value = proof, .value_bytes = WIRE_TAG});
    ck_assert_int_eq(send(fd, frame, n, MSG_NOSIGNAL), (ssize_t)n);
    return fd;
}

/* Strangers that talk noise, and a rank that greets well and then does: the server goes on serving the others. */
START_TEST(server_noise)
{
    struct hd_error err = HD_ERROR_INIT;
    serve(3, 30);
    struct hd_store *store = join(0);
    for (int k = 0; k < 200; k++) {
        uint8_t bytes[600], answer[4096];
        size_t n = 1 + draw() % sizeof bytes;
        int fd = connect_to(hd__server_port(server));
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)draw();
        if (k & 1)
            bytes[0] = WIRE_VERSION;
        if (k & 2)
            bytes[1] = WIRE_PUT; /* no greeting before */
        ck_assert_int_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
        shutdown(fd, SHUT_WR);
        while (recv(fd, answer, sizeof answer, 0) > 0)
            continue;
        close(fd);
    }
    ck_assert_int_eq(hd__store_put(store, "still", "here", 4, &err), HD_OK);
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store), NULL, &err), HD_OK);
    uint8_t noise[64];
    memset(noise, 0xee, sizeof noise);
    int fd = raw_join(2);
    ck_assert_int_eq(send(fd, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    size_t bytes = 0;
    ck_assert_int_eq(hd__store_get(store, "never", NULL, &bytes, hd__now() + 20, &err), HD_E_PEER);
    ck_assert_msg(strstr(err.message, "rank 2 died") != NULL, "%s", err.message);
    close(fd);
    hd__store_close(store);
    hd__server_close(server);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("noise");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, parser_noise);
    tcase_add_test(tc, server_noise);
    return suite_run_case("noise", tc);
}
