// What a Bernoulli query reads (Section 5 and Appendix C of arXiv:2605.01910): how often each feature is drawn, and the list
// of the features that any query of the group needs. Grid: KV heads x sequences.
//
// KIND 1: Monte Carlo; 2: stratified; 3: one Monte Carlo sample of the group's mean magnitudes. Every step is rounded as the
// CPU's kernels round it, so that the draws are the same.

#include "common.cuh"

#define DRAWN_ROWS (KIND == 3 ? 1 : G)

// q [B, H, D];  list [B, H_kv, LIST]: how many features, additions per key, reads per key, 0, then the features in order
// weights [B, H_kv, D, PAD], of the listed features;  factors [B, H], what the sums are multiplied by
// feature_counts [B, H_kv, 5] and drawn [B, H_kv, G, D], draws with the query's sign: the trace's build only
extern "C" __global__ void __launch_bounds__(THREADS)
features(const u16 *__restrict__ q, int draws, float scale, u64 seed, u32 sequence0, u32 sequence_step, u32 head0, u32 position,
         const u32 *__restrict__ positions, int *list, float *weights, float *factors, i64 *feature_counts, int *drawn) {
    allow_dependents();
    __shared__ float queries[G][D];  // 1 / sqrt(D) folded in
    __shared__ float magnitudes[DRAWN_ROWS][D];
    __shared__ int times[DRAWN_ROWS][D];
    __shared__ float norms[DRAWN_ROWS];
    __shared__ int between[THREADS / 32];
    __shared__ int adds, reads;
    const int kv = blockIdx.x, H_kv = gridDim.x, sequence = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 kv_head = (i64)sequence * H_kv + kv;
    Stream random = {(u32)seed, (u32)(seed >> 32), sequence0 + sequence * sequence_step, head0 + kv * G,
                     positions ? positions[sequence] : position};
    if (threadIdx.x == 0) adds = reads = 0;
    for (int e = threadIdx.x; e < G * D; e += THREADS) queries[e / D][e % D] = __fmul_rn(widened(q[kv_head * G * D + e]), scale);
    __syncthreads();
    for (int e = threadIdx.x; e < DRAWN_ROWS * D; e += THREADS) {
        const int i = e % D;
#if KIND == 3
        float sum = 0;
        for (int g = 0; g < G; g++) sum = __fadd_rn(sum, fabsf(queries[g][i]));
        magnitudes[0][i] = __fdiv_rn(sum, (float)G);
#else
        magnitudes[e / D][i] = fabsf(queries[e / D][i]);
#endif
        times[e / D][i] = 0;
    }
    __syncthreads();
    for (int r = warp; r < DRAWN_ROWS; r += THREADS / 32) {
        float norm = 0;
        for (int i = lane; i < D; i += 32) norm = fmaxf(norm, magnitudes[r][i]);
        norm = max_of_warp(norm);
        if (lane == 0) norms[r] = norm;
    }
    __syncthreads();

    // ---- how often each feature is drawn ----
#if KIND == 2
    for (int e = threadIdx.x; e < DRAWN_ROWS * D; e += THREADS) {
        const int r = e / D, i = e % D;
        const Stream own = {random.key0, random.key1, random.sequence, random.head + r, random.position};
        const double share = norms[r] > 0 ? __ddiv_rn((double)magnitudes[r][i], (double)norms[r]) : 0.0;
        const double expected = __dmul_rn((double)draws, share), whole = floor(expected);
        times[r][i] = (int)whole + (uniform(own, i, true) < __dsub_rn(expected, whole));
    }
#else
    const int i_own = threadIdx.x % D;  // THREADS is a multiple of D
#pragma unroll 1
    for (int r = 0; r < DRAWN_ROWS; r++) {
        const Stream own = {random.key0, random.key1, random.sequence, random.head + r, random.position};
        const double share = norms[r] > 0 ? __ddiv_rn((double)magnitudes[r][i_own], (double)norms[r]) : 0.0;
        int hits = 0;
#pragma unroll 2
        for (int e = threadIdx.x; e < draws * D; e += THREADS) hits += uniform(own, e, true) < share;
        if (hits) atomicAdd(&times[r][i_own], hits);
    }
#endif
    __syncthreads();

    // ---- the list of what any query needs, with each query's weights ----
    int needed = 0;
    if (threadIdx.x < D)
        for (int r = 0; r < DRAWN_ROWS; r++) needed |= times[r][threadIdx.x] > 0;
    int total;
    const int place = scan_block(needed, between, total);
    list += kv_head * LIST;
    if (needed) {
        const int i = threadIdx.x;
        list[4 + place] = i;
#pragma unroll
        for (int g = 0; g < PAD; g++) {
            float weight = 0;
            if (g < G) {
                const int count = times[KIND == 3 ? 0 : g][i];
#if KIND == 3
                weight = __fmul_rn((float)count, __fdiv_rn(queries[g][i], magnitudes[0][i]));
#else
                weight = queries[g][i] < 0 ? -(float)count : (float)count;
#endif
#if INSTRUMENT
                atomicAdd(&adds, KIND == 3 ? 1 : count);
                atomicAdd(&reads, count > 0);
#endif
            }
            weights[(kv_head * D + place) * PAD + g] = weight;
        }
    }
    if (threadIdx.x < G) factors[kv_head * G + threadIdx.x] = __fdiv_rn(norms[KIND == 3 ? 0 : threadIdx.x], (float)draws);
    __syncthreads();
    if (threadIdx.x >= total && threadIdx.x < D) list[4 + threadIdx.x] = 0;  // what lies beyond is looked up, but not read
    if (threadIdx.x < 4) list[threadIdx.x] = threadIdx.x == 0 ? total : threadIdx.x == 1 ? adds : threadIdx.x == 2 ? reads : 0;

#if INSTRUMENT
    feature_counts += kv_head * 5;
    for (int e = threadIdx.x; e < DRAWN_ROWS * D; e += THREADS) {
        const int count = times[e / D][e % D];
        COUNT(feature_counts[0], KIND == 2 ? 1 : draws);
        COUNT(feature_counts[1], 1 + (KIND == 2 ? 1 : draws));
        COUNT(feature_counts[2], (KIND == 2 ? 2 : count) + (KIND == 3 ? G : 0));
        COUNT(feature_counts[3], KIND == 2 ? 2 : KIND == 3 ? 2 + (count ? 2 * G : 0) : 1);
        COUNT(feature_counts[4], KIND == 2);
    }
    for (int e = threadIdx.x; e < G * D; e += THREADS) {
        const int count = times[KIND == 3 ? 0 : e / D][e % D];
        drawn[kv_head * G * D + e] = KIND != 3 && queries[e / D][e % D] < 0 ? -count : count;
    }
#endif
}
