/* The cache of groups: what is created, what is shared, what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/group.h"
#include "tests/suite.h"

static int made, freed, refuse;

static int32_t fake_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                          struct hd_comm_group **group, struct hd_error *err)
{
    (void)comm, (void)name, (void)ranks, (void)n;
    if (refuse)
        return hd_fail(err, HD_E_PEER, "no");
    made++;
    *group = (struct hd_comm_group *)(uintptr_t)made;
    return HD_OK;
}
static void fake_free(struct hd_comm_group *group)
{
    (void)group;
    freed++;
}

START_TEST(cached)
{
    const struct hd_comm_ops ops = {.struct_size = sizeof ops, .group = fake_group, .group_free = fake_free};
    struct hd__groups *groups = hd__comm_groups_create(&ops, NULL, 10);
    const int32_t tp[] = {9, 10, 11}, dp[] = {7, 10}, self[] = {10}, alien[] = {1, 2};
    const struct hd__group *a, *b, *c, *d;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(hd__comm_groups_get(groups, "tp", tp, 3, &a, &err), HD_OK);
    ck_assert_int_eq(hd__comm_groups_get(groups, "tp", tp, 3, &b, &err), HD_OK);
    ck_assert_ptr_eq(a, b);
    ck_assert_int_eq(a->n, 3);
    ck_assert_int_eq(a->me, 1);
    ck_assert_int_eq(hd__comm_groups_get(groups, "other", tp, 3, &d, &err), HD_OK);
    ck_assert(d != a && d->group != a->group);
    ck_assert_int_eq(hd__comm_groups_get(groups, "tp", dp, 2, &b, &err), HD_OK);
    ck_assert_ptr_ne(a, b);
    ck_assert_int_eq(hd__comm_groups_get(groups, "cp", self, 1, &c, &err), HD_OK);
    ck_assert_ptr_null(c->group);
    ck_assert_int_eq(hd__comm_groups_get(groups, "tp", alien, 2, &d, &err), HD_E_INTERNAL);
    ck_assert_int_eq(made, 3);
    refuse = 1;
    ck_assert_int_eq(hd__comm_groups_get(groups, "pp", dp, 2, &d, &err), HD_E_PEER);
    refuse = 0;
    ck_assert_int_eq(hd__comm_groups_get(groups, "pp", dp, 2, &d, &err), HD_OK); /* a refusal is not kept */
    hd__comm_groups_destroy(groups);
    ck_assert_int_eq(freed, 4);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("group");
    tcase_add_test(tc, cached);
    return suite_run_case("group", tc);
}
