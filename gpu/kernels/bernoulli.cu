// The score pass on a feature-major K, from the listed features alone: the same stash, maxima and sums as score.cu.
// Grid: KV heads x tiles x sequences; one block is one tile.
//
// A thread holds eight keys of the tile for all G queries and reads 16 bytes of a feature at a time; LANES threads span the
// tile, and the block's PARTS of LANES threads take the features in turn, so that a feature of a tile is one contiguous read.
// STAGED: all of them are copied to shared memory at once, in the background; else a thread has IN_FLIGHT loads at a time.

#include "common.cuh"

#define SCORE_THREADS 128
#define LANES ((TILE + 7) / 8)
#define PARTS (SCORE_THREADS / LANES)
#define WIDTH (LANES * 8)
#define IN_FLIGHT 6  // loads of a thread, if not STAGED
#define ROUNDS ((D + PARTS - 1) / PARTS)
#define LISTED (ROUNDS < 16 ? ROUNDS : 16)  // features that a thread looks up together
#define EVEN (D % (PARTS * LISTED) == 0)
#define QUADS ((WIDTH + 127) / 128)

// eight keys of one feature; where tiles don't start on 16 bytes, one by one
__device__ __forceinline__ uint4 load_keys(const u16 *at, int exist) {
#if TILE % 8 == 0
    return load_once(at);
#else
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 low = 2 * i < exist ? __ldg(at + 2 * i) : 0, high = 2 * i + 1 < exist ? __ldg(at + 2 * i + 1) : 0;
        pairs[i] = low | high << 16;
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
#endif
}

__device__ __forceinline__ void add_feature(float (&sum)[G][8], const uint4 &x, const float (&weights)[PAD]) {
    const float key[8] = {low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y), low_half(x.z), high_half(x.z), low_half(x.w), high_half(x.w)};
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum[g][i] = fmaf(weights[g], key[i], sum[g][i]);
}

// k [B, H_kv, D, n];  list, weights, factors from `features`;  the rest as for `score`
extern "C" __global__ void __launch_bounds__(SCORE_THREADS)
bernoulli(const u16 *__restrict__ k, const int *__restrict__ lengths, int n_most, i64 k_sequence, i64 k_head, i64 k_feature,
          const int *__restrict__ list, const float *__restrict__ weights, const float *__restrict__ factors, float *__restrict__ u,
          float *__restrict__ m, double *__restrict__ ell, i64 *score_counts) {
    allow_dependents();
    extern __shared__ uint4 dynamic_keys[];  // STAGED: [D][LANES]; then, in their place, the parts' sums
    float(*const sums)[G][WIDTH] = (float(*)[G][WIDTH])dynamic_keys;  // [PARTS]
    __shared__ __align__(16) float of_feature[D][PAD];
#if !STAGED
    __shared__ int features[D];
#endif
    const int kv = blockIdx.x, H_kv = gridDim.x, t = blockIdx.y, T = gridDim.y, sequence = blockIdx.z;
    const int w = min((lengths ? lengths[sequence] : n_most) - t * TILE, TILE);
    if (w <= 0) return;
    const i64 kv_head = (i64)sequence * H_kv + kv;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slot = threadIdx.x % LANES, part = threadIdx.x / LANES;
    wait_for_predecessor();
    list += kv_head * LIST;
    const int count = list[0];
    const bool active = part < PARTS && slot * 8 < w;
    const u16 *const keys = k + sequence * k_sequence + kv * k_head + (i64)t * TILE + slot * 8;
#if STAGED
    const u32 pieces = (u32)(k_feature / 8);  // 16 bytes from feature to feature
    uint4 *const own = dynamic_keys + threadIdx.x;  // [part + round * PARTS][slot] is own[round * PARTS * LANES]
    if (active)
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round += LISTED) {
            u32 feature[LISTED];  // loaded whether listed or not, so that no load waits for another
#pragma unroll
            for (int j = 0; j < LISTED; j++)
                if (EVEN || part + (round + j) * PARTS < D) feature[j] = list[4 + part + (round + j) * PARTS];
#pragma unroll
            for (int j = 0; j < LISTED; j++) {
                const int i = part + (round + j) * PARTS;
                if (EVEN || i < D) copy_once_if(own + (round + j) * (PARTS * LANES), (const uint4 *)keys + (u64)feature[j] * pieces, i < count);
            }
        }
#pragma unroll 1
    for (int i = threadIdx.x; i < D * (PAD / 4); i += SCORE_THREADS)
        copy_often((float4 *)of_feature + i, (const float4 *)(weights + kv_head * D * PAD) + i);
    wait_for_copies();
#else
#pragma unroll
    for (int i = threadIdx.x; i < D; i += SCORE_THREADS) features[i] = list[4 + i];
#pragma unroll
    for (int i = threadIdx.x; i < D * (PAD / 4); i += SCORE_THREADS)
        ((float4 *)of_feature)[i] = ((const float4 *)(weights + kv_head * D * PAD))[i];
#endif
    __syncthreads();

    float sum[G][8];
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum[g][i] = 0;
    if (active) {
#if STAGED
#pragma unroll 2
        for (int i = part; i < count; i += PARTS) add_feature(sum, own[(i - part) * LANES], of_feature[i]);
#else
#pragma unroll 1
        for (int first = part; first < count; first += PARTS * IN_FLIGHT) {
            uint4 x[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++)
                if (first + j * PARTS < count) x[j] = load_keys(keys + features[first + j * PARTS] * k_feature, w - slot * 8);
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++)
                if (first + j * PARTS < count) add_feature(sum, x[j], of_feature[first + j * PARTS]);
        }
#endif
    }
#if STAGED
    __syncthreads();  // the keys have been used: the sums take their place
#endif
    if (part < PARTS)
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < 8; i += 4)
                *(float4 *)&sums[part][g][slot * 8 + i] = make_float4(sum[g][i], sum[g][i + 1], sum[g][i + 2], sum[g][i + 3]);
    __syncthreads();

    // ---- a warp takes a head: the parts' sums, the tile's maximum, its exponentials and their sum ----
#pragma unroll 1
    for (int g = warp; g < G; g += SCORE_THREADS / 32) {
        const float factor = factors[kv_head * G + g];
        float s[QUADS][4], top = -INFINITE;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) {
            const int key = quad * 128 + lane * 4;
            float4 all = make_float4(0, 0, 0, 0);
            if (key < WIDTH)
#pragma unroll
                for (int other = 0; other < PARTS; other++) {
                    const float4 x = *(const float4 *)&sums[other][g][key];
                    all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
                }
            const float four[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[quad][i] = key + i < w ? four[i] * factor : -INFINITE;
                top = fmaxf(top, s[quad][i]);
            }
        }
        top = max_of_warp(top);
#if !KEEP
        double total = 0;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[quad][i] = stash_exp(s[quad][i] - top);
                total += (double)s[quad][i];
            }
#pragma unroll
        for (int step = 16; step; step /= 2) total += __shfl_xor_sync(FULL, total, step);
        if (lane == 0) ell[(kv_head * G + g) * T + t] = total;
#endif
        if (lane == 0) m[(kv_head * G + g) * T + t] = top;
        float *const stash = u + ((kv_head * T + t) * G + g) * PITCH;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++)
            if (quad * 128 + lane * 4 < PITCH) *(float4 *)(stash + quad * 128 + lane * 4) = make_float4(s[quad][0], s[quad][1], s[quad][2], s[quad][3]);
    }

#if INSTRUMENT
    if (threadIdx.x == 0) {
        i64 *const counts = score_counts + (kv_head * T + t) * 8;
        COUNT(counts[0], (i64)w * list[1]);
        COUNT(counts[1], KIND == 3 ? (i64)w * list[1] : 0);
        COUNT(counts[2], (i64)w * list[2] + (t == 0 ? G * D : 0));
        COUNT(counts[3], w * G);
#if !KEEP
        COUNT(counts[4], w * G);
        COUNT(counts[5], w * G);
        COUNT(counts[6], 2 * w * G);
#endif
        COUNT(counts[7], w * G);
    }
#endif
}
