/* Races, by happens-before as in Flanagan and Freund's FastTrack (PLDI 2009): two threads touch a byte of shared or
 * device memory, one of them writes, and nothing orders the two. Accesses are known by the calls that the compiler's
 * -fsanitize=thread puts before each, which come here: ThreadSanitizer itself would take fibers for one thread.
 *
 * What orders: __syncthreads the threads of a block; __syncwarp, and ldmatrix as a warp's single instruction, the lanes
 * of the mask; the end of a launch all of it. Shuffles, votes and mma do not ("These intrinsics do not imply a memory
 * barrier", CUDA C++ Programming Guide, warp shuffle functions), and nothing orders blocks. Two atomics are no race.
 *
 * A byte remembers its last write and its last two reads by different threads, so a race with an older read may be
 * missed; the order of threads is another with each seed. */
#include "race.h"
#include "cuda_runtime.h"
#include "memory.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

namespace
{

struct access {
    uint64_t launch; /* 0: none */
    const void *at;  /* in the code */
    uint32_t block, barrier, clock;
    uint16_t thread;
    bool is_atomic;
};

struct cell {
    access write, reads[2];
};

enum { PAGE = 4096, WARP = 32, MOST_THREADS = 1024 };

bool running;
const char *kernel;
uint64_t launch;
uint32_t block, barrier;
uint32_t clocks[MOST_THREADS][WARP]; /* of the lanes of its warp, as far as a thread has heard of them; its own */

struct page {
    cell cells[PAGE];
};
std::unordered_map<uintptr_t, page *> pages;
uintptr_t last_page;
page *last;

/* The memory that a page belongs to. Static shared memory has no pages of its own. */
enum kind { OTHER, DEVICE, SOME_SHARED };
struct known {
    uintptr_t page;
    uint64_t launch;
    size_t pieces;
    enum kind kind;
} known_pages[PAGE];

cell *cell_of(uintptr_t at)
{
    if (!last || at / PAGE != last_page) {
        page *&found = pages[at / PAGE];
        if (!found)
            found = static_cast<page *>(calloc(1, sizeof *found));
        if (!found)
            abort();
        last = found;
        last_page = at / PAGE;
    }
    return &last->cells[at % PAGE];
}

enum kind kind_of(const void *at)
{
    uintptr_t number = (uintptr_t)at / PAGE;
    const void *first = reinterpret_cast<const void *>(number * PAGE);
    known *k = &known_pages[number % PAGE];
    size_t pieces = emulate_shared_pieces(), bytes;
    uint64_t base;
    if (k->page == number && k->launch == launch && k->pieces == pieces)
        return k->kind;
    *k = {number, launch, pieces,
          emulate_is_shared(first, PAGE)                           ? SOME_SHARED
          : emulate_memory_range(at, &base, &bytes) == cudaSuccess ? DEVICE
                                                                   : OTHER};
    return k->kind;
}

/* Is `a` before whatever the running thread does now? */
bool is_before(const access &a, bool shared, unsigned me)
{
    if (a.launch != launch)
        return true;
    if (a.block != block)
        return shared; /* which is another block's */
    return a.thread == me || a.barrier < barrier ||
           (a.thread / WARP == me / WARP && clocks[me][a.thread % WARP] >= a.clock);
}

void print_place(const char *what, const access &a)
{
    Dl_info info;
    char command[512];
    fprintf(stderr, "  %s by thread %u of block %u", what, a.thread, a.block);
    if (!dladdr(a.at, &info)) {
        fprintf(stderr, "\n");
        return;
    }
    fprintf(stderr, ", at ");
    snprintf(command, sizeof command, "addr2line -e '%s' -Cifp 0x%zx >&2", info.dli_fname,
             (size_t)((const char *)a.at - (const char *)info.dli_fbase) - 1);
    fflush(stderr);
    if (system(command))
        fprintf(stderr, "%s+%p\n", info.dli_fname, a.at);
}

[[noreturn]] void found(const void *at, bool shared, const char *now, const access &a, const char *then,
                        const access &b)
{
    fprintf(stderr, "race in kernel %s, on %s memory %p:\n", kernel, shared ? "shared" : "device", at);
    print_place(now, a);
    print_place(then, b);
    abort();
}

void touch(const void *memory, size_t bytes, bool writes, bool is_atomic, const void *code)
{
    if (!running)
        return;
    enum kind kind = kind_of(memory);
    bool shared = kind == SOME_SHARED && emulate_is_shared(memory, 1);
    if (!shared && kind != DEVICE)
        return;
    unsigned me = emulate_thread();
    access now = {launch, code, block, barrier, clocks[me][me % WARP], (uint16_t)me, is_atomic};
    for (size_t i = 0; i < bytes; i++) {
        const char *at = static_cast<const char *>(memory) + i;
        cell *c = cell_of((uintptr_t)at);
        if (c->write.launch && !(is_atomic && c->write.is_atomic) && !is_before(c->write, shared, me))
            found(at, shared, writes ? "written" : "read", now, "written", c->write);
        for (const access &r : c->reads)
            if (writes && r.launch && !is_before(r, shared, me))
                found(at, shared, "written", now, "read", r);
        if (writes) {
            c->write = now;
        } else if (c->reads[0].launch != launch || c->reads[0].block != block || c->reads[0].thread == me) {
            c->reads[0] = now;
        } else {
            c->reads[1] = c->reads[0];
            c->reads[0] = now;
        }
    }
}

} // namespace

void emulate_race_begin(const char *name, uint64_t number, uint32_t index)
{
    kernel = name;
    launch = number;
    block = index;
    barrier = 0;
    memset(clocks, 0, sizeof clocks);
    for (unsigned t = 0; t < MOST_THREADS; t++)
        clocks[t][t % WARP] = 1;
    running = true;
}

void emulate_race_barrier(void)
{
    barrier++;
}

void emulate_race_end(void)
{
    running = false;
}

void emulate_race_sync(unsigned first, unsigned mask)
{
    uint32_t latest[WARP] = {0};
    for (unsigned i = 0; i < WARP; i++)
        for (unsigned k = 0; k < WARP && (mask >> i & 1); k++)
            latest[k] = clocks[first + i][k] > latest[k] ? clocks[first + i][k] : latest[k];
    for (unsigned i = 0; i < WARP; i++)
        if (mask >> i & 1) {
            memcpy(clocks[first + i], latest, sizeof latest);
            clocks[first + i][i]++;
        }
}

void emulate_race_atomic(const void *at, size_t bytes)
{
    touch(at, bytes, true, true, __builtin_return_address(0));
}

/* ---- what -fsanitize=thread calls */

#define HOOK(name, bytes, writes)                                     \
    extern "C" void name(void *at)                                    \
    {                                                                 \
        touch(at, bytes, writes, false, __builtin_return_address(0)); \
    }
#define HOOKS(bytes)                                 \
    HOOK(__tsan_read##bytes, bytes, false)           \
    HOOK(__tsan_write##bytes, bytes, true)           \
    HOOK(__tsan_unaligned_read##bytes, bytes, false) \
    HOOK(__tsan_unaligned_write##bytes, bytes, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void *at, size_t bytes)
{
    touch(at, bytes, false, false, __builtin_return_address(0));
}

extern "C" void __tsan_write_range(void *at, size_t bytes)
{
    touch(at, bytes, true, false, __builtin_return_address(0));
}

extern "C" void __tsan_init(void)
{
}

extern "C" void __tsan_func_entry(void *)
{
}

extern "C" void __tsan_func_exit(void)
{
}

/* Guards of static variables. */
extern "C" char __tsan_atomic8_load(const volatile char *at, int order)
{
    return __atomic_load_n(at, order == __ATOMIC_RELAXED ? __ATOMIC_RELAXED : __ATOMIC_ACQUIRE);
}
