/* Jobs whose ranks meet by TLS, and ranks that are not let in. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/certificates.h"
#include "tests/system/system.h"

enum { DAY = 86400 };

/* With the secret and, where there is one, this certificate of this CA. */
static struct command *start_rank(int rank, int port, const char *ca, const char *cert, const char *job)
{
    static const char *const names[] = {"HEDDLE_TLS_CA", "HEDDLE_TLS_CERT", "HEDDLE_TLS_KEY"};
    char path[3][64];
    snprintf(path[0], sizeof path[0], "%s.pem", ca);
    snprintf(path[1], sizeof path[1], "%s.pem", cert);
    snprintf(path[2], sizeof path[2], "%s.key", cert);
    for (int i = 0; i < 3; i++)
        *ca ? setenv(names[i], path[i], 1) : unsetenv(names[i]);
    setenv("HEDDLE_SECRET", strchr(TEST_SECRET, '=') + 1, 1);
    return command_start_rank(rank, 2, 0, port, "train llama.yaml job.steps=5 job.name=%s", job);
}

START_TEST(two_ranks_train)
{
    static struct curve with, without;
    int port = free_port();
    struct command *c[2];
    make_certificate("ca", NULL, DAY);
    make_certificate("zero", "ca", DAY);
    make_certificate("one", "ca", DAY);
    for (int rank = 1; rank >= 0; rank--)
        c[rank] = start_rank(rank, port, "ca", rank ? "one" : "zero", "tls");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    curve_read(&with, "tls");
    train(&without, "plain", "llama.yaml job.steps=5 mesh.dp=2");
    expect_same_bits(&with, &without);
}
END_TEST

/* Rank 0 has a right one; rank 1 is refused, by itself or by rank 0, before long. */
START_TEST(refused)
{
    static const struct {
        const char *ca, *cert, *says;
    } rows[] = {
        {"ca", "expired", "HEDDLE_TLS_CERT: expired.pem is refused by the CA in ca.pem: certificate has expired"},
        {"ca", "other", "HEDDLE_TLS_CERT: other.pem is refused by the CA in ca.pem: unable to get local issuer"},
        {"other-ca", "other", "failed: its certificate is refused by the CA in HEDDLE_TLS_CA: unable to get local"},
        {"ca", "none", "HEDDLE_TLS_CERT: none.pem: No such file or directory"},
        {"", "", "speaks TLS, and this rank does not: set HEDDLE_TLS_CA, _CERT and _KEY on all ranks, or on none"},
    };
    int port = free_port();
    make_certificate("ca", NULL, DAY);
    make_certificate("other-ca", NULL, DAY);
    make_certificate("rank", "ca", DAY);
    make_certificate("expired", "ca", 60);
    make_certificate("other", "other-ca", DAY);
    struct command *zero = start_rank(0, port, "ca", "rank", "refused");
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *one = start_rank(1, port, rows[i].ca, rows[i].cert, "refused");
        command_wait(one, 20);
        ck_assert_int_ne(one->code, 0);
        expect_says(one, rows[i].says);
    }
    struct command *one = start_rank(1, port, "ca", "rank", "refused"); /* and the right one is not kept out */
    command_wait(one, 60);
    command_wait(zero, 60);
    expect_code(one, 0);
    expect_code(zero, 0);
    expect_says(zero, "the rendezvous refused a connection from 127.0.0.1:");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"two-ranks-train", two_ranks_train, 0}, {"refused", refused, 0}, {NULL, NULL, 0}};
    return system_run("tls", tests);
}
