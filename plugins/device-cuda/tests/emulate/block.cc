/* One block after another; threads of a block are fibers that run one at a time. */
#include "cuda_runtime.h"
#include "race.h"
#include <deque>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

emulate_place emulate_here;

namespace
{

/* Stacks at odd multiples of a cache line: at a power of two all would share a few sets of the caches. */
enum { MOST_THREADS = 1024, STACK = (128 << 10) + 5 * 64, SHARED_LIMIT = 227 << 10, PLAIN_LIMIT = 48 << 10 };
enum state { RUNNABLE, AT_BARRIER, AT_EXCHANGE, DONE };

struct snapshot {
    unsigned char bytes[32 * EMULATE_EXCHANGE];
    int readers;
};

struct lane {
    void *sp;
    uint3 index;
    state at;
    unsigned mask;
    int predicate;
    bool orders; /* the exchange orders memory, too: __syncwarp */
    snapshot *seen;
    unsigned char given[EMULATE_EXCHANGE];
};

struct shared {
    const void *place;
    std::vector<unsigned char> memory;
    uint64_t launch; /* the last that used it */
};

/* Lanes of a warp, as masks. */
struct warp {
    unsigned at_exchange, done;
};

lane lanes[MOST_THREADS];
warp warps[MOST_THREADS / 32];
char *stacks;
lane *current;
void *scheduler_sp;
int n_lanes, n_waiting, n_done;
int votes, votes_seen;          /* predicates of the barrier that is filling, and of the last full one */
std::deque<snapshot> snapshots; /* all; elements stay where they are */
std::vector<snapshot *> idle;
std::deque<shared> statics;
unsigned char *dynamic;
size_t dynamic_bytes, static_bytes, shared_room;
uint64_t launch;
const char *kernel_name;
const std::function<void()> *body;

struct allowed {
    const void *kernel;
    size_t bytes;
};
std::vector<allowed> limits;

[[noreturn]] void broken(const char *what)
{
    fprintf(stderr, "emulated kernel %s, block (%u, %u, %u): %s\n", kernel_name, emulate_here.block.x,
            emulate_here.block.y, emulate_here.block.z, what);
    abort();
}

/* ---- fibers */

extern "C" void emulate_switch(void **save, void *to);
/* Saves what a call keeps, on the stack, and goes on where the other stopped: by a jump, as a return to another caller
 * than the last one would never be predicted. */
__asm__(".text\n"
        ".type emulate_switch, @function\n"
        "emulate_switch:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "pop %rcx\n jmp *%rcx\n"
        ".size emulate_switch, .-emulate_switch\n");

void to_scheduler(void)
{
    emulate_switch(&current->sp, scheduler_sp);
}

/* What this lane saw in its last exchange may be used again. */
void forget(lane *l)
{
    if (l->seen && --l->seen->readers == 0)
        idle.push_back(l->seen);
    l->seen = nullptr;
}

void fiber_main(void)
{
    (*body)();
    forget(current);
    current->at = DONE;
    warps[(current - lanes) / 32].done |= 1u << (current - lanes) % 32;
    n_done++;
    to_scheduler();
    __builtin_unreachable();
}

void begin_fiber(int i)
{
    void **top = reinterpret_cast<void **>(stacks + (size_t)(i + 1) * STACK) - 1; /* aligned as after a call */
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int r = 0; r < 6; r++)
        *--top = nullptr;
    lanes[i].sp = top;
    lanes[i].at = RUNNABLE;
    lanes[i].seen = nullptr;
}

void resume(lane *l)
{
    current = l;
    emulate_here.thread = l->index;
    emulate_switch(&scheduler_sp, l->sp);
}

/* ---- who is next */

/* In order, backwards, warps apart, or at random. Returns how many lanes go on as long as any of them can before the
 * next ones begin: a warp, or all of them, which then have a turn each and none is more than a shuffle ahead. */
int draw_order(int *order)
{
    uint32_t kind = emulate_random(4);
    for (int i = 0; i < n_lanes; i++)
        order[i] = kind == 1 ? n_lanes - 1 - i : i;
    if (kind < 2)
        return n_lanes;
    int unit = kind == 2 && n_lanes % 32 == 0 ? 32 : 1;
    for (int i = n_lanes / unit - 1; i > 0; i--) {
        int j = (int)emulate_random((uint32_t)i + 1);
        for (int k = 0; k < unit; k++)
            std::swap(order[i * unit + k], order[j * unit + k]);
    }
    return unit == 1 ? n_lanes : unit;
}

/* A turn for each of these lanes that can go on; or turns until none can. Did any? */
bool take_turns(const int *order, int n, bool to_the_end)
{
    bool ran = false, more = true;
    while (more) {
        more = false;
        for (int i = 0; i < n; i++) {
            lane *l = &lanes[order[i]];
            if (l->at == RUNNABLE) {
                resume(l);
                ran = more = true;
            }
        }
        more &= to_the_end;
    }
    return ran;
}

void open_barrier(void)
{
    votes_seen = votes;
    votes = 0;
    n_waiting = 0;
    emulate_race_barrier();
    for (int i = 0; i < n_lanes; i++)
        if (lanes[i].at == AT_BARRIER)
            lanes[i].at = RUNNABLE;
}

void run_threads(void)
{
    static int order[MOST_THREADS];
    while (n_done < n_lanes) {
        bool ran = false;
        int unit = draw_order(order);
        for (int i = 0; i < n_lanes; i += unit)
            ran |= take_turns(order + i, unit, unit < n_lanes);
        if (n_waiting && n_waiting + n_done == n_lanes)
            open_barrier();
        else if (!ran)
            broken("its threads wait for one another and none can go on (a barrier or a shuffle that not all reach)");
    }
}

void poison(void *p, size_t bytes)
{
    memset(p, 0xff, bytes); /* NaN in every floating type; -1 as an integer */
}

void run_block(void)
{
    unsigned i = 0;
    n_lanes = (int)(blockDim.x * blockDim.y * blockDim.z);
    n_waiting = n_done = votes = 0;
    memset(warps, 0, sizeof warps);
    for (shared &s : statics)
        poison(s.memory.data(), s.memory.size());
    poison(dynamic, dynamic_bytes);
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++, i++) {
                lanes[i].index = {x, y, z};
                begin_fiber((int)i);
            }
    emulate_race_begin(kernel_name, launch,
                       (emulate_here.block.z * gridDim.y + emulate_here.block.y) * gridDim.x + emulate_here.block.x);
    run_threads();
    emulate_race_end();
    if (emulate_copies_left())
        broken("it ends while copies into its shared memory are under way");
    if (emulate_products_left())
        broken("it ends while products of a warpgroup are under way");
}

/* Blocks in random order: none may count on another to be done. */
void run_grid(void)
{
    dim3 g = gridDim;
    size_t n = (size_t)g.x * g.y * g.z;
    std::vector<uint32_t> order(n);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t i = n - 1; i > 0; i--)
        std::swap(order[i], order[emulate_random((uint32_t)i + 1)]);
    for (uint32_t i : order) {
        emulate_here.block = {i % g.x, i / g.x % g.y, i / g.x / g.y};
        run_block();
    }
}

void *map(size_t bytes)
{
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

size_t limit_of(const void *kernel)
{
    for (const allowed &a : limits)
        if (a.kernel == kernel)
            return a.bytes;
    return PLAIN_LIMIT;
}

int wait_for_all(int predicate)
{
    votes += predicate != 0;
    n_waiting++;
    current->at = AT_BARRIER;
    to_scheduler();
    return votes_seen;
}

/* Has each lane of the mask come for it? */
bool all_here(const lane *first, unsigned mask)
{
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && first[i].mask != mask)
            return false;
    return true;
}

/* All lanes of the mask are here: each sees what all gave. */
void complete(lane *first, unsigned mask)
{
    if (idle.empty())
        idle.push_back(&snapshots.emplace_back());
    snapshot *s = idle.back();
    idle.pop_back();
    s->readers = 0;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1))
            continue;
        memcpy(s->bytes + i * EMULATE_EXCHANGE, first[i].given, EMULATE_EXCHANGE);
        first[i].seen = s;
        first[i].at = RUNNABLE;
        s->readers++;
    }
    warps[(first - lanes) / 32].at_exchange &= ~mask;
    if (first[__builtin_ctz(mask)].orders)
        emulate_race_sync((unsigned)(first - lanes), mask);
}

} // namespace

void *emulate_shared(const void *at, size_t bytes)
{
    for (shared &s : statics) {
        if (s.place != at)
            continue;
        static_bytes += s.launch != launch ? bytes : 0;
        s.launch = launch;
        if (static_bytes + dynamic_bytes > shared_room)
            broken("it has more shared memory, static and dynamic, than a block may");
        return s.memory.data() + (128 - (uintptr_t)s.memory.data() % 128) % 128;
    }
    statics.push_back({at, std::vector<unsigned char>(bytes + 128), 0});
    poison(statics.back().memory.data(), statics.back().memory.size());
    return emulate_shared(at, bytes);
}

#ifdef CU_EMULATE_RACES
int emulate_is_shared(const void *at, size_t bytes)
{
    const unsigned char *p = static_cast<const unsigned char *>(at);
    for (const shared &s : statics)
        if (p + bytes > s.memory.data() && p < s.memory.data() + s.memory.size())
            return 1;
    return p + bytes > dynamic && p < dynamic + SHARED_LIMIT;
}

size_t emulate_shared_pieces(void)
{
    return statics.size();
}
#endif

void *emulate_dynamic(void)
{
    return dynamic;
}

cudaError_t emulate_allow(const void *kernel, size_t bytes)
{
    if (bytes > SHARED_LIMIT)
        return emulate_said(cudaErrorInvalidValue);
    for (allowed &a : limits)
        if (a.kernel == kernel) {
            a.bytes = bytes;
            return cudaSuccess;
        }
    limits.push_back({kernel, bytes});
    return cudaSuccess;
}

cudaError_t emulate_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t bytes,
                           cudaStream_t stream, std::function<void()> work)
{
    size_t threads = (size_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || !threads || threads > MOST_THREADS ||
        block.z > 64)
        return emulate_said(cudaErrorInvalidConfiguration);
    if (bytes > limit_of(kernel))
        return emulate_said(cudaErrorInvalidValue);
    size_t room = limit_of(kernel) > PLAIN_LIMIT ? SHARED_LIMIT : PLAIN_LIMIT;
    return emulate_enqueue(stream, [=] {
        if (!stacks) {
            stacks = static_cast<char *>(map((size_t)MOST_THREADS * STACK));
            dynamic = static_cast<unsigned char *>(map(SHARED_LIMIT));
        }
        emulate_here.grid_dim = grid;
        emulate_here.block_dim = block;
        kernel_name = name;
        dynamic_bytes = bytes;
        static_bytes = 0;
        shared_room = room;
        launch++;
        body = &work;
        run_grid();
    });
}

void __syncthreads(void)
{
    wait_for_all(0);
}

int __syncthreads_count(int predicate)
{
    return wait_for_all(predicate);
}

int __syncthreads_or(int predicate)
{
    return wait_for_all(predicate) != 0;
}

int __syncthreads_and(int predicate)
{
    return wait_for_all(!predicate) == 0;
}

unsigned emulate_thread(void)
{
    return (unsigned)(current - lanes);
}

unsigned emulate_lane(void)
{
    return (unsigned)(current - lanes) % 32;
}

const unsigned char *emulate_exchange(unsigned mask, const void *value, size_t bytes)
{
    lane *me = current;
    int number = (int)(me - lanes) / 32;
    warp *w = &warps[number];
    forget(me);
    if (bytes)
        memcpy(me->given, value, bytes);
    me->mask = mask;
    me->at = AT_EXCHANGE;
    me->orders = !bytes;
    if (!(mask >> emulate_lane() & 1))
        broken("a lane takes part in an exchange whose mask it is not in");
    if (mask & w->done)
        broken("an exchange names a lane that has ended");
    w->at_exchange |= 1u << emulate_lane();
    if ((w->at_exchange & mask) == mask && all_here(&lanes[number * 32], mask))
        complete(&lanes[number * 32], mask);
    to_scheduler();
    return me->seen->bytes;
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
    int given = predicate != 0;
    const unsigned char *all = emulate_exchange(mask, &given, sizeof given);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            bits |= (unsigned)(all[i * EMULATE_EXCHANGE] != 0) << i;
    return bits;
}
