/* A transport whose every operation is done at once. In a file of its own, so that calls of it stay calls. */
#include "heddle/comm.h"

extern const struct hd_comm_ops empty_ops;

static int32_t collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                          struct hd_error *err)
{
    (void)group, (void)call, (void)err;
    *request = 1;
    return HD_OK;
}

static int32_t wait_for(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err)
{
    (void)comm, (void)request, (void)deadline, (void)err;
    return HD_OK;
}

const struct hd_comm_ops empty_ops = {.struct_size = sizeof empty_ops, .collective = collective, .wait = wait_for};
