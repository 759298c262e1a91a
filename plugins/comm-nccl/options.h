/* Settings of comm-nccl, each in one row: its name in the job file, and where NCCL takes it from. */
#ifndef HD_COMM_NCCL_OPTIONS_H
#define HD_COMM_NCCL_OPTIONS_H

#include "api.h"
#include "heddle/plugin.h"

/* Variables of NCCL's environment. X(name, variable, level, help); unset: NULL. */
#define NC_TEXTS(X)                                                                                             \
    X(algo, "NCCL_ALGO", TUNER,                                                                                 \
      "algorithms that may be chosen: ring,tree or ^nvls; from NCCL 2.24 on also by operation")                 \
    X(proto, "NCCL_PROTO", TUNER, "protocols that may be chosen: simple, ll, ll128; ^ leaves out")              \
    X(socket_ifname, "NCCL_SOCKET_IFNAME", USER,                                                                \
      "network interfaces of sockets, by the beginning of their names: eth,ib; =eth0 exactly, ^docker none of") \
    X(ib_hca, "NCCL_IB_HCA", USER, "InfiniBand or RoCE devices: mlx5_0:1,mlx5_1; = exactly, ^ none of")         \
    X(net, "NCCL_NET", USER, "the network module: IB, Socket, or a plugin's own name")                          \
    X(net_plugin, "NCCL_NET_PLUGIN", USER, "library of a network plugin of NCCL: its suffix or its path; none") \
    X(tuner_plugin, "NCCL_TUNER_PLUGIN", TUNER, "library of a tuner plugin of NCCL")                            \
    X(topo_file, "NCCL_TOPO_FILE", TUNER, "XML file of the machine's topology, instead of what NCCL finds")     \
    X(debug_subsys, "NCCL_DEBUG_SUBSYS", USER,                                                                  \
      "what debug: info and trace tell of: INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,ALL; ^ leaves out")           \
    X(debug_file, "NCCL_DEBUG_FILE", USER, "where debug lines go instead of standard output; %h host name, %p process")

/* X(name, variable, lowest, highest, unset, unit, level, help) */
#define NC_NUMBERS(X)                                                                                                 \
    X(buffsize, "NCCL_BUFFSIZE", 0, 1e10, 0, "bytes", TUNER, "buffer between two GPUs, a channel; 0: NCCL's")         \
    X(p2p_net_chunksize, "NCCL_P2P_NET_CHUNKSIZE", 0, 1e10, 0, "bytes", TUNER,                                        \
      "piece of a message over the network; 0: NCCL's")                                                               \
    X(nthreads, "NCCL_NTHREADS", 0, 1024, 0, "threads", TUNER, "threads of a block: 64, 128, 256, 512; 0: NCCL's")    \
    X(min_nchannels, "NCCL_MIN_NCHANNELS", 0, 64, 0, "channels", TUNER, "fewest channels; 0: NCCL's")                 \
    X(max_nchannels, "NCCL_MAX_NCHANNELS", 0, 64, 0, "channels", TUNER,                                               \
      "most channels, which is blocks that communication takes from compute; 0: NCCL's")                              \
    X(max_p2p_nchannels, "NCCL_MAX_P2P_NCHANNELS", 0, 64, 0, "channels", TUNER,                                       \
      "most channels of messages; 0: NCCL's")                                                                         \
    X(socket_nthreads, "NCCL_SOCKET_NTHREADS", 0, 16, 0, "threads", TUNER,                                            \
      "threads a connection of the socket network; 0: NCCL's")                                                        \
    X(nsocks_perthread, "NCCL_NSOCKS_PERTHREAD", 0, 16, 0, "sockets", TUNER,                                          \
      "sockets a thread of the socket network; 0: NCCL's")                                                            \
    X(ib_gid_index, "NCCL_IB_GID_INDEX", -1, 255, -1, NULL, USER, "global id index of RoCE; -1: NCCL's")              \
    X(ib_timeout, "NCCL_IB_TIMEOUT", 0, 31, 0, NULL, USER, "InfiniBand's time-out, 4.096 us x 2^N; 0: NCCL's")        \
    X(ib_retry_cnt, "NCCL_IB_RETRY_CNT", -1, 7, -1, "tries", USER, "InfiniBand's tries after a time-out; -1: NCCL's") \
    X(ib_sl, "NCCL_IB_SL", -1, 15, -1, NULL, USER, "service level of InfiniBand; -1: NCCL's")                         \
    X(ib_tc, "NCCL_IB_TC", -1, 255, -1, NULL, USER, "traffic class of InfiniBand; -1: NCCL's")                        \
    X(ib_qps_per_connection, "NCCL_IB_QPS_PER_CONNECTION", 0, 128, 0, "queue pairs", TUNER,                           \
      "queue pairs a connection; 0: NCCL's")                                                                          \
    X(cross_nic, "NCCL_CROSS_NIC", -1, 2, -1, NULL, TUNER,                                                            \
      "rings over different network cards: 0 no, 1 yes, 2 where it is better; -1: NCCL's")                            \
    X(nvls, "NCCL_NVLS_ENABLE", -1, 2, -1, NULL, TUNER,                                                               \
      "sums inside NVLink switches: 0 no, 1 yes, 2 where there are; -1: NCCL's")                                      \
    X(multi_rank_gpu, "NCCL_MULTI_RANK_GPU_ENABLE", 0, 1, 0, NULL, DEV,                                               \
      "1: several ranks may share a GPU, for tests; from NCCL 2.30 on")                                               \
    X(launch_order_implicit, "NCCL_LAUNCH_ORDER_IMPLICIT", -1, 1, -1, NULL, DEV,                                      \
      "1: communicators of a GPU run in the order of their calls; from NCCL 2.26 on; -1: NCCL's")

/* X(name, variable, choices, level, help). The first choice leaves it to NCCL; `no` is 0, `yes` is 1, others are
 * themselves. */
#define NC_CHOICES(X)                                                                                               \
    X(debug, "NCCL_DEBUG", "default|VERSION|WARN|INFO|TRACE", USER, "what NCCL prints")                             \
    X(net_gdr_level, "NCCL_NET_GDR_LEVEL", "default|LOC|PIX|PXB|PHB|SYS", USER,                                     \
      "how far apart card and GPU may be for GPU direct RDMA; LOC: never")                                          \
    X(p2p_level, "NCCL_P2P_LEVEL", "default|LOC|NVL|PIX|PXB|PHB|SYS", USER,                                         \
      "how far apart GPUs may be that reach each other directly; LOC: never")                                       \
    X(p2p_disable, "NCCL_P2P_DISABLE", "default|no|yes", USER, "yes: GPUs do not reach each other directly")        \
    X(shm_disable, "NCCL_SHM_DISABLE", "default|no|yes", USER, "yes: not through shared memory of the host")        \
    X(ib_disable, "NCCL_IB_DISABLE", "default|no|yes", USER, "yes: sockets instead of InfiniBand or RoCE")          \
    X(pxn_disable, "NCCL_PXN_DISABLE", "default|no|yes", TUNER, "yes: not to a network card by way of another GPU") \
    X(cumem_enable, "NCCL_CUMEM_ENABLE", "default|no|yes", TUNER, "memory of NCCL by CUDA's virtual memory calls")  \
    X(runtime_connect, "NCCL_RUNTIME_CONNECT", "default|no|yes", TUNER,                                             \
      "connections are made when they are first used")                                                              \
    X(socket_family, "NCCL_SOCKET_FAMILY", "default|AF_INET|AF_INET6", USER, "IPv4 or IPv6")

/* Members of ncclConfig_t: X(name, lowest, highest, first NCCL, unit, level, help); -1: NCCL's. */
#define NC_FIELDS(X)                                                                                            \
    X(cga_cluster_size, 8, 21700, "blocks", TUNER, "blocks of a cluster (sm_90 and later)")                     \
    X(min_ctas, 64, 21700, "blocks", TUNER, "fewest blocks of an operation")                                    \
    X(max_ctas, 64, 21700, "blocks", TUNER, "most blocks of an operation, taken from compute while it runs")    \
    X(split_share, 1, 21800, NULL, DEV, "1: groups over all ranks share buffers, and then wait for each other") \
    X(traffic_class, 255, 22600, NULL, USER, "traffic class of the network")                                    \
    X(collnet_enable, 1, 22700, NULL, TUNER, "1: sums inside the network (SHARP) where there are")              \
    X(cta_policy, 2, 22700, NULL, TUNER, "0: fastest, 1: few blocks, 2: none where copy engines can do it")     \
    X(nvls_ctas, 64, 22700, "blocks", TUNER, "blocks of sums inside NVLink switches")                           \
    X(channels_per_net_peer, 64, 22800, "channels", TUNER, "channels of messages to one rank over the network") \
    X(nvlink_centric_sched, 1, 22800, NULL, TUNER, "1: messages are scheduled for NVLink first")

struct nc_settings {
    const char *library, *driver, *net_name;
#define NC_MEMBER(name, ...) const char *name;
    NC_TEXTS(NC_MEMBER)
#undef NC_MEMBER
#define NC_MEMBER(name, ...) int64_t name;
    NC_NUMBERS(NC_MEMBER)
    NC_FIELDS(NC_MEMBER)
    int64_t message_ctas;
#undef NC_MEMBER
#define NC_MEMBER(name, ...) int32_t name;
    NC_CHOICES(NC_MEMBER)
#undef NC_MEMBER
    int32_t blocking, registered;
};

#define NC_ONE(...) +1
enum { NC_N_OPTIONS = 6 NC_TEXTS(NC_ONE) NC_NUMBERS(NC_ONE) NC_CHOICES(NC_ONE) NC_FIELDS(NC_ONE) };
enum { NC_N_VARIABLES = 0 NC_TEXTS(NC_ONE) NC_NUMBERS(NC_ONE) NC_CHOICES(NC_ONE) };
#undef NC_ONE
extern const struct hd_option nc_options[NC_N_OPTIONS];

/* A variable that a job sets. */
struct nc_variable {
    const char *name;
    char value[256]; /* longer texts are refused */
};
/* Those that `settings` sets, in the order of the tables. Their number, or an error. */
int32_t nc_variables(const struct nc_settings *settings, struct nc_variable variables[NC_N_VARIABLES],
                     struct hd_error *err);
/* NCCL's defaults, and what is set; HD_E_UNSUPPORTED names what NCCL `version` has not. */
int32_t nc_config(const struct nc_settings *settings, int version, struct nc_config *config, struct hd_error *err);
/* Is memory registered with NCCL `version`? */
int nc_registers(const struct nc_settings *settings, int version);

#endif
