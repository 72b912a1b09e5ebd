// Enough of CUDA to run a kernel on a CPU: threads are fibres that switch at barriers.
//
// Shared memory holds NaN before every block. Fibres run in ascending or in descending order between barriers, so
// that what a missing barrier leaves to chance comes out differently.
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__ static
#define __align__(bytes) alignas(bytes)
#define __shared__ static __attribute__((section("shared_memory")))

struct Index { int x, y; };
static Index threadIdx, blockIdx;

static char anchor __attribute__((section("shared_memory"), used));
extern char __start_shared_memory[], __stop_shared_memory[];

static inline int min(int a, int b) { return a < b ? a : b; }
template <class T> static inline T __ldg(const T* address) { return *address; }

static const size_t STACK = 256 * 1024;
static ucontext_t scheduler, *fibres;
static bool* done;
static int current;
static void (*body)();

static void __syncthreads() {
    swapcontext(&fibres[current], &scheduler);
}

static void enter() {
    body();
    done[current] = true;
    swapcontext(&fibres[current], &scheduler);
}

// Returns 0, or 1 if some threads left while others waited at a barrier.
static int launch(void (*kernel)(), int grid_x, int grid_y, int block_x, int block_y, int descending) {
    const int count = block_x * block_y;
    body = kernel;
    fibres = (ucontext_t*)malloc(count * sizeof(ucontext_t));
    done = (bool*)malloc(count);
    char* stacks = (char*)malloc(count * STACK);
    int diverged = 0;
    for (int block = 0; block < grid_x * grid_y; ++block) {
        blockIdx = {block % grid_x, block / grid_x};
        memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
        for (int i = 0; i < count; ++i) {
            done[i] = false;
            getcontext(&fibres[i]);
            fibres[i].uc_stack.ss_sp = stacks + i * STACK;
            fibres[i].uc_stack.ss_size = STACK;
            fibres[i].uc_link = nullptr;
            makecontext(&fibres[i], enter, 0);
        }
        for (int left = count; left;) {
            const int before = left;
            for (int i = 0; i < count; ++i) {
                current = descending ? count - 1 - i : i;
                if (!done[current]) {
                    threadIdx = {current % block_x, current / block_x};
                    swapcontext(&scheduler, &fibres[current]);
                    left -= done[current];
                }
            }
            diverged |= left != before && left != 0;
        }
    }
    free(stacks), free(done), free(fibres);
    return diverged;
}
