// Micro-benchmarks: what a card does with plain streams, gathers, atomics, chains of loads, barriers and instructions.
// None of them computes attention. Compiled without any header but ours, by NVRTC or nvcc.

#include "base.cuh"

extern __shared__ u32 table[];  // 0 ... 1023 in order, where instructions are timed

// ---- loads and stores of 16 bytes ----

__device__ __forceinline__ uint4 load_plain(const uint4 *at) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}

__device__ __forceinline__ void keep(u32 x, u32 *sink) {
    if (x == 0x9e3779b9u) *sink = x;  // as good as never, but the compiler can't know
}

__device__ __forceinline__ u64 cycle_now() {
    u64 now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}

__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// ---- what makes caches cold: every word of a buffer updated in place ----

extern "C" __global__ void touch(float *x, i64 n) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) x[i] += 1.0f;
}

// ---- streams: a block takes LOADS * blockDim.x consecutive pieces of 16 bytes, all of a thread's in flight ----

template <int LOADS, bool ONCE>
__device__ __forceinline__ void read_pieces(const uint4 *x, i64 n, u32 *sink) {
    const i64 first = (i64)blockIdx.x * LOADS * blockDim.x + threadIdx.x;
    uint4 piece[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const i64 at = first + (i64)i * blockDim.x;
        piece[i] = ONCE ? load_once(x + (at < n ? at : n - 1)) : load_plain(x + (at < n ? at : n - 1));
    }
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < LOADS; i++) all ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
    keep(all, sink);
}

#define READ(loads) \
    extern "C" __global__ void read_##loads(const uint4 *x, i64 n, u32 *sink) { read_pieces<loads, false>(x, n, sink); } \
    extern "C" __global__ void read_once_##loads(const uint4 *x, i64 n, u32 *sink) { read_pieces<loads, true>(x, n, sink); }
READ(1)
READ(2)
READ(4)
READ(8)

template <int STORES>
__device__ __forceinline__ void write_pieces(uint4 *x, i64 n) {
    const i64 first = (i64)blockIdx.x * STORES * blockDim.x + threadIdx.x;
    const u32 value = (u32)first;
#pragma unroll
    for (int i = 0; i < STORES; i++) {
        const i64 at = first + (i64)i * blockDim.x;
        if (at < n) x[at] = make_uint4(value, value, value, value);
    }
}

extern "C" __global__ void write_1(uint4 *x, i64 n) { write_pieces<1>(x, n); }
extern "C" __global__ void write_4(uint4 *x, i64 n) { write_pieces<4>(x, n); }

extern "C" __global__ void copy_4(const uint4 *from, uint4 *to, i64 n) {
    const i64 first = (i64)blockIdx.x * 4 * blockDim.x + threadIdx.x;
    uint4 piece[4];
#pragma unroll
    for (int i = 0; i < 4; i++) piece[i] = load_plain(from + min(first + (i64)i * blockDim.x, n - 1));
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + (i64)i * blockDim.x < n) to[first + (i64)i * blockDim.x] = piece[i];
}

// ---- gathers: `count` different rows out of 2^bits, in an order without a pattern; a row is `lanes` pieces of 16 bytes ----

__device__ __forceinline__ u32 shuffled(u32 i, int bits) {  // a permutation of 0 ... 2^bits - 1: each step can be undone
    const u32 mask = bits == 32 ? FULL : (1u << bits) - 1;
    i = (i * 0x9e3779b1u + 0x7f4a7c15u) & mask;
    i ^= i >> (bits / 2);
    i = (i * 0x85ebca6bu) & mask;
    i ^= i >> (bits / 2);
    return (i * 0xc2b2ae35u) & mask;
}

template <int AT_ONCE>
__device__ __forceinline__ void gather_rows(const uint4 *x, int bits, i64 count, int lanes, u32 *sink) {
    const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x, group = thread / lanes;
    const int piece = thread % lanes;
    uint4 part[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const i64 row = group * AT_ONCE + i;
        part[i] = load_plain(x + (i64)shuffled((u32)(row < count ? row : count - 1), bits) * lanes + piece);
    }
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) all ^= part[i].x ^ part[i].y ^ part[i].z ^ part[i].w;
    keep(all, sink);
}

extern "C" __global__ void gather_1(const uint4 *x, int bits, i64 count, int lanes, u32 *sink) { gather_rows<1>(x, bits, count, lanes, sink); }
extern "C" __global__ void gather_4(const uint4 *x, int bits, i64 count, int lanes, u32 *sink) { gather_rows<4>(x, bits, count, lanes, sink); }

// rows of one of `heads` interleaved arrays: block (head, tile) reads `rows` rows of `lanes` pieces, `heads * lanes` pieces apart
extern "C" __global__ void read_strided(const uint4 *x, i64 rows_of_head, int rows, int lanes, u32 *sink) {
    const int head = blockIdx.x, heads = gridDim.x;
    const i64 first = (i64)blockIdx.y * rows;
    u32 all = 0;
    uint4 piece[8];
    for (int start = threadIdx.x; start < rows * lanes; start += 8 * blockDim.x) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = min(start + i * (int)blockDim.x, rows * lanes - 1);
            const i64 row = min(first + at / lanes, rows_of_head - 1);
            piece[i] = load_once(x + (row * heads + head) * lanes + at % lanes);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) all ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
    }
    keep(all, sink);
}

// ---- second-level cache: every block reads the same buffer `rounds` times, from a place of its own on ----

extern "C" __global__ void read_again(const uint4 *x, i64 n, int rounds, u32 *sink) {
    u32 all = 0;
    const i64 threads = (i64)gridDim.x * blockDim.x;
    for (int round = 0; round < rounds; round++) {
        // another block's pieces each round, so that nothing comes from this multiprocessor's own cache
        const i64 first = (((i64)blockIdx.x + (i64)round * 37) % gridDim.x) * blockDim.x + threadIdx.x;
        i64 i = first;
        for (; i + 3 * threads < n; i += 4 * threads) {
            uint4 piece[4];
#pragma unroll
            for (int j = 0; j < 4; j++) piece[j] = __ldcg(x + i + j * threads);
#pragma unroll
            for (int j = 0; j < 4; j++) all ^= piece[j].x ^ piece[j].y ^ piece[j].z ^ piece[j].w;
        }
        for (; i < n; i += threads) {
            const uint4 piece = __ldcg(x + i);
            all ^= piece.x ^ piece.y ^ piece.z ^ piece.w;
        }
    }
    keep(all, sink);
}

// ---- chains: one thread, each load waits for the one before. The buffer holds zeros ----
// hop i reads 2^bits places of `step` bytes in shuffled order; times[0]: cycles, [1]: nanoseconds, [2]: cycles of the first hop

extern "C" __global__ void chase(const char *x, int bits, i64 step, int hops, int warm, u64 *times) {
    u32 zero = 0;
    for (int i = 0; i < warm; i++) zero += __ldcg((const u32 *)(x + (i64)(shuffled(i, bits) + zero) * step));
    const u64 start = cycle_now(), start_ns = nanoseconds();
    zero += __ldcg((const u32 *)(x + (i64)(shuffled(0, bits) + zero) * step));
    const u64 first = cycle_now() + zero;
    for (int i = 1; i < hops; i++) zero += __ldcg((const u32 *)(x + (i64)(shuffled(i, bits) + zero) * step));
    times[0] = cycle_now() + zero - start;
    times[1] = nanoseconds() - start_ns;
    times[2] = first - start;
}

extern "C" __global__ void chase_atomics(u32 *x, int hops, u64 *times) {
    u32 zero = 0;
    const u64 start = cycle_now(), start_ns = nanoseconds();
    for (int i = 0; i < hops; i++) zero = atomicAdd(x + zero, 0);
    times[0] = cycle_now() + zero - start;
    times[1] = nanoseconds() - start_ns;
    times[2] = 0;
}

// ---- atomics: every thread adds `each` times; `apart` words between the addresses of neighbours, over `words` of them ----

extern "C" __global__ void atomics(float *x, i64 words, i64 apart, int each) {
    const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < each; i++) atomicAdd(x + (thread * apart + (i64)i * 9973 * apart) % words, 1.0f);
}

// ---- launches ----

extern "C" __global__ void nothing(u32 *sink) {
    if (sink == (u32 *)1) *sink = 0;
}

extern "C" __global__ void nothing_early(u32 *sink) {  // lets the next kernel start at once, and waits for the one before
    allow_dependents();
    wait_for_predecessor();
    if (sink == (u32 *)1) *sink = 0;
}

// ---- barriers; cycles[block] ----

extern "C" __global__ void barriers(int rounds, u64 *cycles) {
    __syncthreads();
    const u64 start = cycle_now();
    for (int i = 0; i < rounds; i++) __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = cycle_now() - start;
}

extern "C" __global__ void cluster_barriers(int rounds, u64 *cycles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const u64 start = cycle_now();
    for (int i = 0; i < rounds; i++) {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
    if (threadIdx.x == 0) cycles[blockIdx.x] = cycle_now() - start;
#endif
}

// the same with a number of each thread sent to the cluster's first block before each barrier
extern "C" __global__ void cluster_stores(int rounds, u64 *cycles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ float received[8][128];
    u32 at = (u32)__cvta_generic_to_shared(&received[blockIdx.x % 8][threadIdx.x % 128]), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(at));
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const u64 start = cycle_now();
    for (int i = 0; i < rounds; i++) {
        if (threadIdx.x < 128) asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"((float)i) : "memory");
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
    if (threadIdx.x == 0) cycles[blockIdx.x] = cycle_now() - start;
#endif
}

// ---- instructions: `rounds` times 32 of them, in one chain of a thread or in four side by side; cycles[block] ----

__device__ __forceinline__ void ffma(float &x) { asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(0.999f), "f"(0.5f)); }
__device__ __forceinline__ void imad(u32 &x) { asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(x) : "r"(0x9e3779b1u), "r"(12345u)); }
__device__ __forceinline__ void shift(u32 &x) { asm volatile("shf.l.wrap.b32 %0, %0, %1, 5;" : "+r"(x) : "r"(0x9e3779b1u)); }
__device__ __forceinline__ void dadd(double &x) { asm volatile("add.rn.f64 %0, %0, %1;" : "+d"(x) : "d"(0.5)); }
__device__ __forceinline__ void dfma(double &x) { asm volatile("fma.rn.f64 %0, %0, %1, %2;" : "+d"(x) : "d"(0.999), "d"(0.5)); }
__device__ __forceinline__ void ddiv(double &x) { x = __ddiv_rn(1.5, x); }
__device__ __forceinline__ void dexp(double &x) { x = exp(-x); }
__device__ __forceinline__ void ex2(float &x) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); }
__device__ __forceinline__ void cvt(float &x) {  // to float64 and back: two conversions
    double wide;
    asm volatile("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    asm volatile("cvt.rn.f32.f64 %0, %1;" : "=f"(x) : "d"(wide));
}
__device__ __forceinline__ void shfl(u32 &x) { x = __shfl_xor_sync(FULL, x, 1); }
__device__ __forceinline__ void ballot(u32 &x) { x += __ballot_sync(FULL, x & 1); }
__device__ __forceinline__ void lds(u32 &x) {
    x = *(volatile u32 *)(table + x);
}
struct Four {
    float x[4];
};
__device__ __forceinline__ void mma(Four &c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3]) : "r"(1u), "r"(2u), "r"(3u), "r"(4u), "r"(5u), "r"(6u));
}

__device__ __forceinline__ void begin(float &x, int i) { x = 0.25f + 0.01f * i + 1e-4f * threadIdx.x; }
__device__ __forceinline__ void begin(double &x, int i) { x = 0.25 + 0.01 * i + 1e-4 * threadIdx.x; }
__device__ __forceinline__ void begin(u32 &x, int i) { x = threadIdx.x & 31; }
__device__ __forceinline__ void begin(Four &x, int i) { x.x[0] = x.x[1] = x.x[2] = x.x[3] = 0; }
__device__ __forceinline__ u32 word(float x) { return __float_as_uint(x); }
__device__ __forceinline__ u32 word(double x) { return (u32)__double2loint(x); }
__device__ __forceinline__ u32 word(u32 x) { return x; }
__device__ __forceinline__ u32 word(Four x) { return __float_as_uint(x.x[0] + x.x[1] + x.x[2] + x.x[3]); }

#define RUN(name, type, chains) \
    { \
        type x[chains]; \
        for (int i = 0; i < chains; i++) begin(x[i], i); \
        __syncthreads(); \
        const u64 start = cycle_now(); \
        _Pragma("unroll 1") for (int round = 0; round < rounds; round++) { \
            _Pragma("unroll") for (int again = 0; again < 32 / chains; again++) { \
                _Pragma("unroll") for (int i = 0; i < chains; i++) name(x[i]); \
            } \
        } \
        u32 all = 0; \
        for (int i = 0; i < chains; i++) all ^= word(x[i]); \
        keep(all, sink); \
        __syncthreads(); \
        if (threadIdx.x == 0) cycles[blockIdx.x] = cycle_now() - start; \
    }

#define INSTRUCTION(name, type) \
    extern "C" __global__ void one_##name(int rounds, u64 *cycles, u32 *sink) { \
        for (int i = threadIdx.x; i < 1024; i += blockDim.x) table[i] = i; \
        RUN(name, type, 1) \
    } \
    extern "C" __global__ void many_##name(int rounds, u64 *cycles, u32 *sink) { \
        for (int i = threadIdx.x; i < 1024; i += blockDim.x) table[i] = i; \
        RUN(name, type, 4) \
    }

INSTRUCTION(ffma, float)
INSTRUCTION(imad, u32)
INSTRUCTION(shift, u32)
INSTRUCTION(dadd, double)
INSTRUCTION(dfma, double)
INSTRUCTION(ddiv, double)
INSTRUCTION(dexp, double)
INSTRUCTION(ex2, float)
INSTRUCTION(cvt, float)
INSTRUCTION(shfl, u32)
INSTRUCTION(ballot, u32)
INSTRUCTION(lds, u32)
INSTRUCTION(mma, Four)

// a loop of one multiply-add: what a step and its jump back take, by themselves and among others
extern "C" __global__ void loop(int rounds, u64 *cycles, u32 *sink) {
    float x = 0.25f + 1e-4f * threadIdx.x;
    __syncthreads();
    const u64 start = cycle_now();
#pragma unroll 1
    for (int round = 0; round < rounds; round++) ffma(x);
    keep(__float_as_uint(x), sink);
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = cycle_now() - start;
}

// cycles and nanoseconds of the same stretch of work: the clock that the multiprocessors run at
extern "C" __global__ void clock_rate(int rounds, u64 *times, u32 *sink) {
    float x = 0.5f;
    const u64 start = cycle_now(), start_ns = nanoseconds();
    for (int i = 0; i < rounds; i++) ffma(x);
    keep(__float_as_uint(x), sink);
    times[0] = cycle_now() - start;
    times[1] = nanoseconds() - start_ns;
}
