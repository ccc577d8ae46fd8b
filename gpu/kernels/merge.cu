// The tiles' partial sums of each head, weighed by their masses (Algorithm 8 of arXiv:2605.01910): flash's second kernel, and
// dense attention's last one.

#include "common.cuh"

// m, ell [B, H, T];  partials [B, H, T, D];  S: samples per head, 0 for dense;  merge_counts [B, H_kv, 3]
// Grid: splits x heads x sequences, with a head's splits in one cluster (CLUSTER = 1) or one split.
extern "C" __global__ void __launch_bounds__(THREADS)
merge(const float *__restrict__ m, const double *__restrict__ ell, const float *__restrict__ partials, const int *__restrict__ lengths,
      int n_most, int T, int S, out_t *__restrict__ out, i64 *merge_counts) {
    const int split = blockIdx.x, splits = gridDim.x, h = blockIdx.y, H = gridDim.y, sequence = blockIdx.z;
    const i64 head = (i64)sequence * H + h;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int n = lengths ? lengths[sequence] : n_most, tiles = (n + TILE - 1) / TILE;
    const int per_split = (tiles + splits - 1) / splits, from = min(split * per_split, tiles), to = min(from + per_split, tiles);
    extern __shared__ float weights[];  // [tiles of a split]
    __shared__ float tops[THREADS / 32];
    __shared__ double totals[THREADS / 32];
    __shared__ float sums[THREADS / (D / 4)][D];
    tell_of_start();
    wait_for_predecessor();
    m += head * T;
    ell += head * T;
    float top = -INFINITE;
    for (int t = threadIdx.x; t < tiles; t += THREADS) top = fmaxf(top, m[t]);
    top = max_of_block(top, tops);
    double total = 0;
#pragma unroll 1
    for (int t = threadIdx.x; t < tiles; t += THREADS) {
        const double rescale = exp((double)m[t] - (double)top), mass = rescale * ell[t];
        total += mass;
        if (t >= from && t < to) weights[t - from] = (float)(S > 0 ? mass : rescale);  // dense sums are weighed by u already
    }
    for (int step = 16; step; step /= 2) total += __shfl_xor_sync(FULL, total, step);
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < THREADS / 32; i++) total += totals[i];
    // ---- a quarter of the features' threads each, so that a thread reads 16 bytes ----
    const int feature = threadIdx.x % (D / 4) * 4, part = threadIdx.x / (D / 4);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int t = from + part; t < to; t += THREADS / (D / 4)) {
        const float weight = weights[t - from];
        const float4 x = *(const float4 *)(partials + (head * T + t) * D + feature);
        sum.x += weight * x.x, sum.y += weight * x.y, sum.z += weight * x.z, sum.w += weight * x.w;
    }
    *(float4 *)&sums[part][feature] = sum;
    __syncthreads();
    float result = 0;
    if (threadIdx.x < D)
        for (int i = 0; i < THREADS / (D / 4); i++) result += sums[i][threadIdx.x];
#if INSTRUMENT
    if (threadIdx.x == 0) {
        COUNT(merge_counts[(head / G) * 3 + 0], (i64)(to - from) * (D + 2));
        COUNT(merge_counts[(head / G) * 3 + 1], (i64)(to - from) * (D + 1) + (split == 0 ? D : 0));
        COUNT(merge_counts[(head / G) * 3 + 2], to - from);
    }
#endif
#if CLUSTERED
    result = sum_of_cluster(result);
    if (split > 0) return;
#endif
    if (threadIdx.x < D) store_output(out + head * D + threadIdx.x, n > 0 ? result * (float)(1.0 / total) / (float)max(1, S / tiles) : 0.0f);
}
