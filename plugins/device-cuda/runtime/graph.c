/* Segments of a step as CUDA graphs. Relaxed mode would let other threads' calls break nothing; thread-local mode still
 * refuses what this thread must not do between begin and end. */
#include "internal.h"

struct hd_captured {
    cudaGraphExec_t exec;
};

int32_t cu_capture_begin(struct hd_device *d, struct hd_error *err)
{
    return cu_fail(err, cudaStreamBeginCapture(d->stream[HD_STREAM_COMPUTE], cudaStreamCaptureModeThreadLocal), NULL,
                   "device cuda: beginning a capture");
}

static void drop(struct hd_device *d, struct hd_captured *captured)
{
    if (captured && captured->exec)
        cudaGraphExecDestroy(captured->exec);
    d->host->free(captured);
}

int32_t cu_capture_end(struct hd_device *d, struct hd_captured **captured, struct hd_error *err)
{
    cudaGraph_t graph = NULL;
    struct hd_captured *c = d->host->alloc(sizeof *c);
    cudaError_t rc = cudaStreamEndCapture(d->stream[HD_STREAM_COMPUTE], &graph);
    (void)cudaGetLastError(); /* an error in between is reported by its own call: the next launch must not find it */
    if (rc == cudaSuccess && !c)
        rc = cudaErrorMemoryAllocation;
    if (rc == cudaSuccess)
        rc = cudaGraphInstantiate(&c->exec, graph, cudaGraphInstantiateFlagUseNodePriority); /* of its streams */
    if (rc == cudaSuccess)
        rc = cudaGraphUpload(c->exec, d->stream[HD_STREAM_COMPUTE]);
    if (graph)
        cudaGraphDestroy(graph);
    if (rc != cudaSuccess) {
        drop(d, c);
        return cu_fail(err, rc, NULL, "device cuda: ending a capture");
    }
    d->captured++;
    *captured = c;
    return HD_OK;
}

int32_t cu_replay(struct hd_device *d, struct hd_captured *captured, struct hd_error *err)
{
    return cu_fail(err, cudaGraphLaunch(captured->exec, d->stream[HD_STREAM_COMPUTE]), NULL,
                   "device cuda: launching a graph");
}

void cu_captured_free(struct hd_device *d, struct hd_captured *captured)
{
    d->captured -= captured != NULL;
    drop(d, captured);
}
