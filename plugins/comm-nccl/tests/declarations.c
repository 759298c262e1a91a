/* What comm-nccl declares for itself, held against nccl.h where that is found. */
#include <nccl.h>

#include "plugins/comm-nccl/api.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(NC_SUCCESS, ncclSuccess);
SAME(NC_CUDA, ncclUnhandledCudaError);
SAME(NC_SYSTEM, ncclSystemError);
SAME(NC_INTERNAL, ncclInternalError);
SAME(NC_ARGUMENT, ncclInvalidArgument);
SAME(NC_USAGE, ncclInvalidUsage);
SAME(NC_REMOTE, ncclRemoteError);
SAME(NC_IN_PROGRESS, ncclInProgress);
SAME(NC_SUM, ncclSum);
SAME(NC_MAX, ncclMax);
SAME(NC_AVG, ncclAvg);
SAME(NC_U8, ncclUint8);
SAME(NC_I32, ncclInt32);
SAME(NC_F16, ncclFloat16);
SAME(NC_F32, ncclFloat32);
SAME(NC_F64, ncclFloat64);
SAME(NC_BF16, ncclBfloat16);
SAME(sizeof(struct nc_id), sizeof(ncclUniqueId));
SAME(NC_UNSET, NCCL_CONFIG_UNDEF_INT);
SAME(NC_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_VERSION_CODE);

#define PLACE(ours, theirs) SAME(offsetof(struct nc_config, ours), offsetof(ncclConfig_t, theirs))
PLACE(size, size);
PLACE(magic, magic);
PLACE(version, version);
PLACE(blocking, blocking);
PLACE(cga_cluster_size, cgaClusterSize);
PLACE(min_ctas, minCTAs);
PLACE(max_ctas, maxCTAs);
PLACE(net_name, netName);
PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
PLACE(traffic_class, trafficClass);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
PLACE(comm_name, commName);
PLACE(collnet_enable, collnetEnable);
PLACE(cta_policy, CTAPolicy);
PLACE(shrink_share, shrinkShare);
PLACE(nvls_ctas, nvlsCTAs);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
PLACE(channels_per_net_peer, nChannelsPerNetPeer);
PLACE(nvlink_centric_sched, nvlinkCentricSched);
#endif
