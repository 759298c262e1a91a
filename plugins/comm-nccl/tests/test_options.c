/* comm-nccl's tables: settings as variables and as ncclConfig_t, NCCL's results as codes. No library is opened. */
#include <check.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/option.h"
#include "plugins/comm-nccl/internal.h"
#include "tests/suite.h"

static struct nc_variable variables[NC_N_VARIABLES];

/* "name=value name=value" */
static struct nc_settings settings_of(const char *text)
{
    static struct hd__arena arena; /* as long as the process */
    struct hd__options table = HD__OPTIONS(nc_options);
    struct nc_settings s = {0};
    struct hd_error err = HD_ERROR_INIT;
    char name[64], value[300];
    int used = 0;
    ck_assert_int_eq(hd__options_defaults(&table, &s, &arena, &err), HD_OK);
    for (; sscanf(text, " %63[^=]=%299s %n", name, value, &used) == 2; text += used) {
        int64_t i = hd__option_find(&table, name);
        ck_assert_msg(i >= 0, "%s", name);
        ck_assert_msg(hd__option_parse(&nc_options[i], value, &s, &arena, &err) == HD_OK, "%s: %s", name, err.message);
    }
    return s;
}

static int32_t variables_of(const char *text)
{
    struct nc_settings s = settings_of(text);
    struct hd_error err = HD_ERROR_INIT;
    return nc_variables(&s, variables, &err);
}

static const char *value_of(int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(variables[i].name, name))
            return variables[i].value;
    return "(not set)";
}

START_TEST(the_table_is_sound)
{
    struct hd__options table = HD__OPTIONS(nc_options);
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(hd__options_check(&table, sizeof(struct nc_settings), &err) == HD_OK, "%s", err.message);
}
END_TEST

START_TEST(what_is_left_out_stays_with_nccl)
{
    struct nc_settings s = settings_of("");
    struct nc_config config;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(variables_of(""), 0);
    ck_assert_int_eq(nc_config(&s, NC_VERSION(2, 18, 0), &config, &err), HD_OK);
    ck_assert_uint_eq(config.magic, 0xcafebeef);
    ck_assert_uint_eq(config.size, sizeof config);
    ck_assert_int_eq(config.blocking, 0);
    ck_assert_int_eq(config.max_ctas, INT_MIN);
    ck_assert_int_eq(config.nvlink_centric_sched, INT_MIN);
    ck_assert_ptr_null(config.net_name);
}
END_TEST

START_TEST(settings_become_variables)
{
    static const char *const rows[][3] = {
        {"algo=ring,tree", "NCCL_ALGO", "ring,tree"},
        {"proto=^ll128", "NCCL_PROTO", "^ll128"},
        {"buffsize=8MiB", "NCCL_BUFFSIZE", "8388608"},
        {"nthreads=256", "NCCL_NTHREADS", "256"},
        {"max_nchannels=8", "NCCL_MAX_NCHANNELS", "8"},
        {"min_nchannels=2", "NCCL_MIN_NCHANNELS", "2"},
        {"socket_ifname=eth0", "NCCL_SOCKET_IFNAME", "eth0"},
        {"ib_hca=mlx5_0:1", "NCCL_IB_HCA", "mlx5_0:1"},
        {"ib_gid_index=0", "NCCL_IB_GID_INDEX", "0"},
        {"ib_timeout=22", "NCCL_IB_TIMEOUT", "22"},
        {"ib_disable=yes", "NCCL_IB_DISABLE", "1"},
        {"ib_disable=no", "NCCL_IB_DISABLE", "0"},
        {"p2p_disable=yes", "NCCL_P2P_DISABLE", "1"},
        {"shm_disable=yes", "NCCL_SHM_DISABLE", "1"},
        {"net_gdr_level=PHB", "NCCL_NET_GDR_LEVEL", "PHB"},
        {"p2p_level=NVL", "NCCL_P2P_LEVEL", "NVL"},
        {"cross_nic=0", "NCCL_CROSS_NIC", "0"},
        {"debug=INFO", "NCCL_DEBUG", "INFO"},
        {"debug_subsys=INIT,NET", "NCCL_DEBUG_SUBSYS", "INIT,NET"},
        {"nvls=0", "NCCL_NVLS_ENABLE", "0"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        ck_assert_int_eq(variables_of(rows[i][0]), 1);
        ck_assert_str_eq(value_of(1, rows[i][1]), rows[i][2]);
    }
    ck_assert_int_eq(variables_of("algo=ring debug=WARN ib_disable=yes nthreads=512"), 4);
}
END_TEST

START_TEST(all_at_once_have_room)
{
    char text[8192];
    size_t n = 0;
    for (size_t i = 0; i < NC_N_OPTIONS; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s=%s ", nc_options[i].name,
                              nc_options[i].type == HD_OPT_STRING ? "word"
                              : nc_options[i].type == HD_OPT_ENUM ? strrchr(nc_options[i].choices, '|') + 1
                              : nc_options[i].type == HD_OPT_BOOL ? "yes"
                                                                  : "1");
    ck_assert_int_eq(variables_of(text), NC_N_VARIABLES);
}
END_TEST

START_TEST(a_long_text_is_refused)
{
    char text[300] = "ib_hca=";
    struct hd_error err = HD_ERROR_INIT;
    memset(text + 7, 'x', 270);
    struct nc_settings s = settings_of(text);
    ck_assert_int_eq(nc_variables(&s, variables, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "NCCL_IB_HCA"));
}
END_TEST

START_TEST(what_a_version_has_not_is_named)
{
    static const struct {
        const char *text, *name;
        int first;
    } rows[] = {{"traffic_class=3", "traffic_class", NC_VERSION(2, 26, 0)},
                {"cta_policy=2", "cta_policy", NC_VERSION(2, 27, 0)},
                {"nvls_ctas=4", "nvls_ctas", NC_VERSION(2, 27, 0)},
                {"channels_per_net_peer=2", "channels_per_net_peer", NC_VERSION(2, 28, 0)}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct nc_settings s = settings_of(rows[i].text);
        struct nc_config config;
        struct hd_error err = HD_ERROR_INIT;
        ck_assert_int_eq(nc_config(&s, rows[i].first - 1, &config, &err), HD_E_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.message, rows[i].name));
        ck_assert_int_eq(nc_config(&s, rows[i].first, &config, &err), HD_OK);
    }
}
END_TEST

START_TEST(members_of_the_config)
{
    struct nc_settings s =
        settings_of("min_ctas=2 max_ctas=16 cga_cluster_size=0 net_name=IB blocking=yes cta_policy=1");
    struct nc_config config;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(nc_config(&s, NC_VERSION(2, 28, 9), &config, &err), HD_OK);
    ck_assert(config.min_ctas == 2 && config.max_ctas == 16 && config.cga_cluster_size == 0 && config.blocking == 1);
    ck_assert(config.cta_policy == 1 && config.nvls_ctas == INT_MIN);
    ck_assert_str_eq(config.net_name, "IB");
    s.max_ctas = 1;
    ck_assert_int_eq(nc_config(&s, NC_VERSION(2, 28, 9), &config, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "min_ctas 2"));
}
END_TEST

START_TEST(a_version_that_may_hang_registers_nothing)
{
    static const struct {
        int version, registers;
    } all[] = {
        {NC_VERSION(2, 22, 3), 1}, {NC_VERSION(2, 23, 4), 0}, {NC_VERSION(2, 24, 3), 1}, {NC_VERSION(2, 28, 9), 1}};
    struct nc_settings s = {.registered = 1};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ck_assert_int_eq(nc_registers(&s, all[i].version), all[i].registers);
    s.registered = 0;
    ck_assert_int_eq(nc_registers(&s, NC_VERSION(2, 28, 9)), 0);
}
END_TEST

/* ---- results */

static const char *error_string(int result)
{
    return result == NC_REMOTE ? "remote process exited" : "some error";
}

static const char *last_error(nc_comm comm)
{
    (void)comm;
    return "the cable is out";
}

static int cu_string(int result, const char **text)
{
    *text = "out of memory";
    return result == 2 ? 0 : 1;
}

START_TEST(results_become_codes)
{
    static const int rows[][2] = {
        {NC_SUCCESS, HD_OK},         {NC_CUDA, HD_E_IO},       {NC_SYSTEM, HD_E_IO},   {NC_INTERNAL, HD_E_IO},
        {NC_ARGUMENT, HD_E_INVALID}, {NC_USAGE, HD_E_INVALID}, {NC_REMOTE, HD_E_PEER}, {99, HD_E_IO}};
    struct nc_api api = {.GetErrorString = error_string, .GetLastError = last_error, .cuGetErrorString = cu_string};
    struct hd_error err = HD_ERROR_INIT;
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        ck_assert_int_eq(nc_code(rows[i][0]), rows[i][1]);
    ck_assert_int_eq(nc_check(&api, NULL, NC_REMOTE, "all_reduce", &err), HD_E_PEER);
    ck_assert_str_eq(err.message, "nccl: all_reduce: remote process exited: the cable is out");
    ck_assert(err.native == NC_REMOTE && err.scope == HD_SCOPE_GROUP);
    nc_check(&api, NULL, NC_CUDA, "all_reduce", &err);
    ck_assert_int_eq(err.scope, HD_SCOPE_DEVICE);
    ck_assert_int_eq(nc_cu_check(&api, 2, "an event", &err), HD_E_NOMEM);
    ck_assert_str_eq(err.message, "nccl: an event: out of memory (CUDA 2)");
    ck_assert_int_eq(nc_cu_check(&api, 700, "an event", &err), HD_E_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "CUDA 700"));
}
END_TEST

/* A library that is none, and one that lacks what is needed. */
START_TEST(libraries_that_will_not_do)
{
    struct nc_api api = {0};
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(nc_library_open(&api, "/nowhere/libnccl.so.2", &err), HD_E_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "library: PATH"));
    ck_assert_int_eq(nc_library_open(&api, "libm.so.6", &err), HD_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "ncclGetVersion"));
    ck_assert_int_eq(nc_driver_open(&api, "/nowhere/libcuda.so.1", &err), HD_E_NOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "no NVIDIA driver"));
    ck_assert_int_eq(nc_driver_open(&api, "libm.so.6", &err), HD_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "cuInit"));
}
END_TEST

/* Whichever NCCL is here: it opens, has what is needed, and makes ids without a GPU. */
START_TEST(the_nccl_that_is_here)
{
    const char *path = getenv("HEDDLE_TEST_NCCL");
    struct nc_api api = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct nc_id id[2];
    struct nc_config config;
    struct nc_settings s = settings_of("");
    nc_comm comm = NULL;
    int devices = 0;
    if (!path || !*path)
        return;
    ck_assert_msg(nc_library_open(&api, path, &err) == HD_OK, "%s", err.message);
    ck_assert_int_ge(api.version, NC_VERSION(2, 18, 0));
    ck_assert(api.CommSplit != NULL);
    ck_assert((api.AlltoAll != NULL) == (api.version >= NC_VERSION(2, 28, 0)));
    ck_assert((api.CommRegister != NULL) == (api.version >= NC_VERSION(2, 19, 0)));
    ck_assert_int_eq(api.GetUniqueId(&id[0]), NC_SUCCESS);
    ck_assert_int_eq(api.GetUniqueId(&id[1]), NC_SUCCESS);
    ck_assert(memcmp(&id[0], &id[1], sizeof id[0]) != 0);
    if (nc_driver_open(&api, "libcuda.so.1", &err) == HD_OK && nc_driver_works(&api, &err) == HD_OK)
        api.cuDeviceGetCount(&devices);
    if (devices)
        return;
    ck_assert_int_eq(nc_config(&s, api.version, &config, &err), HD_OK);
    int result = api.CommInitRankConfig(&comm, 1, id[0], 0, &config);
    ck_assert_int_eq(nc_check(&api, NULL, result, "ncclCommInitRankConfig", &err), HD_E_IO);
    ck_assert_int_eq(err.scope, HD_SCOPE_DEVICE);
    ck_assert_ptr_nonnull(strstr(err.message, "CUDA driver"));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("options");
    tcase_add_test(tc, the_table_is_sound);
    tcase_add_test(tc, what_is_left_out_stays_with_nccl);
    tcase_add_test(tc, settings_become_variables);
    tcase_add_test(tc, all_at_once_have_room);
    tcase_add_test(tc, a_long_text_is_refused);
    tcase_add_test(tc, what_a_version_has_not_is_named);
    tcase_add_test(tc, members_of_the_config);
    tcase_add_test(tc, a_version_that_may_hang_registers_nothing);
    tcase_add_test(tc, results_become_codes);
    tcase_add_test(tc, libraries_that_will_not_do);
    tcase_add_test(tc, the_nccl_that_is_here);
    tcase_set_timeout(tc, 60);
    return suite_run_case("nccl options", tc);
}
