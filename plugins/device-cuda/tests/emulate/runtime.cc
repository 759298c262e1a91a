/* Streams, events and graphs. Nothing runs when it is enqueued: what runs next is chosen at random when somebody
 * waits or asks, so that work which no event orders runs in any order. */
#include "device.h"
#include "queue.h"
#include <deque>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#include "memory.h"

namespace
{

struct op;
/* Places in a stream are numbered; an event is reached up to the last that ran. */
struct mark {
    uint64_t recorded = 0, reached = 0;
    struct CUgraph_st *capture = nullptr; /* recorded while this graph was made */
    size_t lane = 0, place = 0;           /* where in it */
};

struct op {
    std::function<void()> work;
    std::shared_ptr<mark> record, wait;
    uint64_t ticket = 0;
};

typedef std::vector<std::deque<op>> lanes;
typedef std::vector<std::shared_ptr<void>> objects;

} // namespace

struct CUgraph_st {
    lanes all;
    std::vector<bool> joined; /* another lane waits for its end */
    std::vector<CUstream_st *> streams;
    objects kept;
    long given = 0; /* launches, copies and calls */
    bool broken = false;
};

struct CUgraphExec_st {
    lanes all;
    objects kept;
};

struct CUevent_st {
    std::shared_ptr<mark> at = std::make_shared<mark>();
};

struct CUstream_st {
    std::deque<op> waiting;
    CUgraph_st *capture = nullptr;
    size_t lane = 0;
};

namespace
{

std::recursive_mutex lock;
std::vector<CUstream_st *> streams;
std::deque<CUgraph_st> graphs; /* all that were ever begun: events name them */
thread_local cudaError_t last_error = cudaSuccess;
uint64_t random_state;

/* How often the host waited, enqueued something, graphs among that, and bytes that it copied; added to the file of
 * HEDDLE_EMULATE_COUNTS at the end. */
struct tally {
    uint64_t waits, enqueued, graphs, copied;
    ~tally()
    {
        const char *name = getenv("HEDDLE_EMULATE_COUNTS");
        FILE *file = name ? fopen(name, "a") : nullptr;
        if (!file)
            return;
        fprintf(file, "waits %llu enqueued %llu graphs %llu connections %d copied %llu\n", (unsigned long long)waits,
                (unsigned long long)enqueued, (unsigned long long)graphs, emulate_connections(),
                (unsigned long long)copied);
        fclose(file);
    }
} counted;

bool can_run(const std::deque<op> &queue)
{
    return !queue.empty() && (!queue.front().wait || queue.front().wait->reached >= queue.front().ticket);
}

void run_front(std::deque<op> &queue)
{
    op now = std::move(queue.front());
    queue.pop_front();
    if (now.work)
        now.work();
    if (now.record && now.record->reached < now.ticket)
        now.record->reached = now.ticket;
}

/* One piece of work of one of the queues; false where none can run. */
bool step(const std::vector<std::deque<op> *> &queues)
{
    std::vector<std::deque<op> *> ready;
    for (std::deque<op> *q : queues)
        if (can_run(*q))
            ready.push_back(q);
    if (ready.empty())
        return false;
    run_front(*ready[emulate_random((uint32_t)ready.size())]);
    return true;
}

bool step_streams(void)
{
    std::vector<std::deque<op> *> queues;
    for (CUstream_st *s : streams)
        queues.push_back(&s->waiting);
    return step(queues);
}

/* Until `done`; false where everything waits for something that was never enqueued. */
template <class F> bool run_until(F done)
{
    if (done())
        return true;
    emulate_memory_open(1);
    bool moved = true;
    while (!done() && moved)
        moved = step_streams();
    emulate_memory_open(0);
    return done();
}

void run_graph(const lanes &all)
{
    /* A replay has marks of its own. */
    std::vector<std::pair<std::shared_ptr<mark>, std::shared_ptr<mark>>> twins;
    auto twin = [&](const std::shared_ptr<mark> &of) {
        if (!of)
            return of;
        for (auto &t : twins)
            if (t.first == of)
                return t.second;
        twins.push_back({of, std::make_shared<mark>()});
        return twins.back().second;
    };
    lanes now = all;
    std::vector<std::deque<op> *> queues;
    for (auto &queue : now) {
        for (op &o : queue) {
            o.record = twin(o.record);
            o.wait = twin(o.wait);
        }
        queues.push_back(&queue);
    }
    while (step(queues))
        ;
    for (auto &queue : now)
        if (!queue.empty()) {
            fprintf(stderr, "emulated graph: its parts wait for one another\n");
            abort();
        }
}

/* What must not be called while a stream is captured: the capture is void. */
cudaError_t break_capture(CUstream_st *s)
{
    s->capture->broken = true;
    return emulate_said(cudaErrorStreamCaptureUnsupported);
}

/* Is this what HEDDLE_EMULATE_CAPTURE says? Of a number: the so manyth thing in a capture. */
bool refuses(const char *what)
{
    const char *word = getenv("HEDDLE_EMULATE_CAPTURE");
    return word && !strcmp(word, what);
}

cudaError_t push(CUstream_st *s, op o)
{
    if (!s->capture) {
        counted.enqueued += o.work != nullptr;
        s->waiting.push_back(std::move(o));
        return cudaSuccess;
    }
    if (s->capture->broken)
        return emulate_said(cudaErrorStreamCaptureInvalidated);
    if (o.work && refuses(std::to_string(++s->capture->given).c_str()))
        return break_capture(s);
    s->capture->all[s->lane].push_back(std::move(o));
    s->capture->joined[s->lane] = false;
    return cudaSuccess;
}

void join_capture(CUstream_st *s, CUgraph_st *g)
{
    s->capture = g;
    s->lane = g->all.size();
    g->all.emplace_back();
    g->joined.push_back(false);
    g->streams.push_back(s);
}

} // namespace

cudaError_t emulate_said(cudaError_t rc)
{
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

void emulate_copied(size_t bytes)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    counted.copied += bytes;
}

uint32_t emulate_random(uint32_t n)
{
    if (!random_state) {
        const char *seed = getenv("HEDDLE_EMULATE_SEED");
        random_state = (seed ? strtoull(seed, nullptr, 10) : 1) * 0x9e3779b97f4a7c15u | 1;
    }
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

cudaError_t emulate_enqueue(cudaStream_t stream, std::function<void()> work)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    op o;
    o.work = std::move(work);
    return stream ? push(stream, std::move(o)) : emulate_said(cudaErrorInvalidResourceHandle);
}

cudaGraph_t emulate_capture(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    return stream->capture;
}

void emulate_keep(cudaGraph_t graph, std::shared_ptr<void> object)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    graph->kept.push_back(std::move(object));
}

extern "C" {

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int)
{
    int count;
    cudaError_t started = emulate_start(&count);
    if (started != cudaSuccess)
        return started;
    std::lock_guard<std::recursive_mutex> held(lock);
    *stream = new CUstream_st;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    counted.waits++;
    if (s->capture)
        return break_capture(s);
    if (run_until([=] { return s->waiting.empty(); }))
        return cudaSuccess;
    fprintf(stderr, "emulated stream: it waits for an event that no stream reaches\n");
    abort();
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    for (CUstream_st *s : streams) {
        cudaError_t rc = cudaStreamSynchronize(s);
        if (rc)
            return rc;
    }
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    cudaError_t rc = cudaStreamSynchronize(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (long)i);
    delete s;
    return rc;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    delete event; /* what is enqueued holds the mark */
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    op o;
    event->at->capture = s->capture;
    o.record = event->at;
    o.ticket = ++event->at->recorded;
    cudaError_t rc = push(s, std::move(o));
    if (s->capture) {
        event->at->lane = s->lane;
        event->at->place = s->capture->all[s->lane].size();
    }
    return rc;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    CUgraph_st *g = event->at->capture;
    if (!event->at->recorded)
        return cudaSuccess;
    if (s->capture && s->capture != g) {
        s->capture->broken = true;
        return emulate_said(cudaErrorStreamCaptureIsolation);
    }
    if (g && !s->capture)
        join_capture(s, g);
    if (g && event->at->place == g->all[event->at->lane].size() && event->at->lane != s->lane)
        g->joined[event->at->lane] = true;
    op o;
    o.wait = event->at;
    o.ticket = event->at->recorded;
    return push(s, std::move(o));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    if (event->at->capture)
        return emulate_said(cudaErrorCapturedEvent);
    uint32_t most = 2 + emulate_random(3), n = 0;
    run_until([&] { return event->at->reached >= event->at->recorded || n++ >= most; });
    return event->at->reached >= event->at->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    counted.waits++;
    if (event->at->capture)
        return emulate_said(cudaErrorCapturedEvent);
    run_until([=] { return event->at->reached >= event->at->recorded; });
    return event->at->reached >= event->at->recorded ? cudaSuccess : cudaErrorLaunchFailure;
}

/* Time means nothing here: how many events lie between would do as well. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 1.0f + (float)emulate_random(100) / 100;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    if (s->capture || refuses("begin"))
        return emulate_said(cudaErrorStreamCaptureUnsupported);
    join_capture(s, &graphs.emplace_back());
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    CUgraph_st *g = s->capture;
    cudaError_t rc = cudaSuccess;
    *graph = nullptr;
    if (!g || s->lane != 0)
        return emulate_said(cudaErrorStreamCaptureUnsupported);
    for (CUstream_st *each : g->streams)
        each->capture = nullptr;
    for (size_t i = 1; i < g->all.size(); i++)
        if (!g->joined[i])
            rc = cudaErrorStreamCaptureUnjoined;
    if (g->broken || refuses("end"))
        rc = cudaErrorStreamCaptureInvalidated;
    if (rc == cudaSuccess)
        *graph = g;
    else
        g->kept.clear();
    /* A broken one is kept, too: events still name it. */
    return emulate_said(rc);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    *exec = new CUgraphExec_st{graph->all, graph->kept};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CUgraphExec_st now = *exec;
    counted.graphs++;
    return emulate_enqueue(stream, [=] { run_graph(now.all); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    graph->all.clear(); /* events still name it */
    graph->kept.clear();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    delete exec;
    return cudaSuccess;
}
}
