// What every kernel shares. Compiled by NVRTC or nvcc without any header; set at compile time:
//   D      head dimension (64, 128 or 256)      G     query heads per KV head (1 ... 8)
//   TILE   keys per tile (1 ... 512)            BF16  1: bfloat16, 0: float16
//   WARP_KEYS   keys that a warp scores (16 or 32)      STAGED  1: K through shared memory
//   KEEP        1: stash the scores, not their exponentials (top-k)
//   METHOD, EVERY_TILE, CLUSTER, THREADS, DEPTH  see sample.cu      KIND  see features.cu
//   STASHED     1: flash takes its scores from the stash of a score pass
//   INSTRUMENT  1: also fill the counters and row lists of the trace, and write float32 outputs

#include "base.cuh"

#define PITCH ((TILE + 3) / 4 * 4)  // floats of one tile's stash row
#define INFINITE __int_as_float(0x7f800000)
#define PAD ((G + 3) / 4 * 4)  // weights of one feature in a Bernoulli query's list
#define LIST (D + 4)           // integers of such a list

#if INSTRUMENT
typedef float out_t;
#define COUNT(counter, n) atomicAdd((u64 *)&(counter), (u64)(n))
#else
typedef u16 out_t;
#define COUNT(counter, n)
#endif

// ---- storage formats ----

__device__ __forceinline__ float low_half(u32 pair) {
#if BF16
    return __uint_as_float(pair << 16);
#else
    float x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(x) : "r"(pair));
    return x;
#endif
}

__device__ __forceinline__ float high_half(u32 pair) {
#if BF16
    return __uint_as_float(pair & 0xffff0000u);
#else
    float x;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(x) : "r"(pair));
    return x;
#endif
}

__device__ __forceinline__ float widened(u16 x) { return low_half(x); }

__device__ __forceinline__ void store_output(out_t *at, float x) {
#if INSTRUMENT
    *at = x;
#elif BF16
    u32 bits = __float_as_uint(x);
    *at = x == x ? (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : (u16)0x7fff;
#else
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    *at = half;
#endif
}

// ---- memory ----

// load_once, straight into shared memory, in the background
__device__ __forceinline__ void copy_once(void *shared, const void *at) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(at), "l"(policy));
}

// the same, or nothing (zeros, without a read) where `wanted` is false
__device__ __forceinline__ void copy_once_if(void *shared, const void *at, bool wanted) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(at), "r"(wanted ? 16 : 0), "l"(policy));
}

// 16 bytes that other blocks read too
__device__ __forceinline__ void copy_often(void *shared, const void *at) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(at));
}

// 16 bytes of what a kernel before has left; in groups, of which all but the last PENDING can be waited for
__device__ __forceinline__ void copy_in_group(void *shared, const void *at) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(at));
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- clusters: a head's blocks, those along x ----

#if CLUSTER && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTERED 1

__device__ __forceinline__ void tell_of_start() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// Adds up x of each feature over the blocks, in order: the sum in the first block, nothing in others. Each block has told of its start.
__device__ __forceinline__ float sum_of_cluster(float x) {
    __shared__ float received[8][D];
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // all have started
    if (threadIdx.x < D) {
        u32 at = (u32)__cvta_generic_to_shared(&received[blockIdx.x][threadIdx.x]), there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(at));
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    float sum = 0;
    if (blockIdx.x > 0) return sum;
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x < D)
#pragma unroll 4
        for (int i = 0; i < (int)gridDim.x; i++) sum += received[i][threadIdx.x];
    return sum;
}
#else
#define CLUSTERED 0

__device__ __forceinline__ void tell_of_start() {}
#endif

// ---- tensor cores: c[16 keys][8 heads] += a[16 keys][16 features] * b[16 features][8 heads] ----

__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- exp(x) of x <= 0, on the stash's grid of 2^-40, so that float64 sums of it are exact in any order ----

__device__ __forceinline__ float stash_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    const float grid = 7.62939453125e-06f;  // 2^-17: float32 numbers from here on are multiples of 2^-40
    return y >= grid ? y : __fadd_rn(__fadd_rn(y, grid), -grid);
}

// ---- Philox 4x32-10 (Salmon et al. 2011), word 0 (scores: word 1) as a multiple of 2^-24 in [0, 1) ----

struct Stream {
    u32 key0, key1, sequence, head, position;
};

__device__ __forceinline__ double uniform(const Stream &s, u32 index, bool of_scores = false) {
    u32 c0 = s.sequence, c1 = s.head, c2 = s.position, c3 = index, k0 = s.key0, k1 = s.key1;
    asm volatile("" : "+r"(c0), "+r"(c2));  // keeps a number that all lanes share off the uniform data path, which multiplies slowly
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        const u32 low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)((of_scores ? c1 : c0) >> 8) * 5.9604644775390625e-08;
}

// ---- reductions ----

__device__ __forceinline__ double smaller(double a, double b) { return a < b ? a : b; }  // neither is NaN

// the largest of a warp's numbers, by way of integers that order as they do
__device__ __forceinline__ float max_of_warp(float x) {
    const int bits = __float_as_int(x);
    const int most = __reduce_max_sync(FULL, bits ^ ((bits >> 31) & 0x7fffffff));
    return __int_as_float(most ^ ((most >> 31) & 0x7fffffff));
}

// the largest of a block's numbers; `between` is shared, [THREADS / 32]
template <class T>
__device__ __forceinline__ float max_of_block(float x, T *between) {
    x = max_of_warp(x);
    if (threadIdx.x % 32 == 0) between[threadIdx.x / 32] = x;
    __syncthreads();
    return max_of_warp((float)between[threadIdx.x % (THREADS / 32)]);
}

// ---- inclusive scans, over the first COUNT lanes of each team of TEAM lanes ----

template <int COUNT, int TEAM = 32, class T>
__device__ __forceinline__ T scan_warp(T x) {
    const int lane = threadIdx.x & (TEAM - 1);
#pragma unroll
    for (int step = 1; step < COUNT; step *= 2) {
        const T below = __shfl_up_sync(FULL, x, step, TEAM);
        if (lane >= step) x += below;
    }
    return x;
}

// ---- a block's scan: the sum over the threads before this one, and over all; `between` is shared, [THREADS / 32] ----

template <class T>
__device__ __forceinline__ T scan_block(T x, T *between, T &total) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = THREADS / 32;
    const T through = scan_warp<32>(x);
    __syncthreads();
    if (lane == 31) between[warp] = through;
    __syncthreads();
    const T of_warps = scan_warp<warps>(lane < warps ? between[lane] : (T)0);
    total = __shfl_sync(FULL, of_warps, warps - 1);
    const T before = __shfl_sync(FULL, of_warps, warp ? warp - 1 : 0);
    return (warp ? before : (T)0) + (through - x);
}
