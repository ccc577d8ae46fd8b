// The score pass: u = exp(s - m) of every key, each tile's maximum m and sum ell, in one pass over K
// (Algorithm 3 of arXiv:2605.01910). Grid: KV heads x tiles x sequences; one block is one tile.
// KEEP = 1 stashes the scores themselves, for top-k.

#include "common.cuh"
#include "scores.cuh"

// q [B, H, D], k [B, n, H_kv, D];  lengths [B], keys of each sequence, or null: n_most each
// u [B, H_kv, T, G, PITCH], zero (KEEP: -inf) beyond the last key;  m, ell [B, H_kv, G, T];  score_counts [B, H_kv, T, 8]
extern "C" __global__ void __launch_bounds__(WARPS * 32)
score(const u16 *__restrict__ q, const u16 *__restrict__ k, const int *__restrict__ lengths, int n_most, i64 k_sequence, i64 k_row,
      float scale, float *__restrict__ u, float *__restrict__ m, double *__restrict__ ell, i64 *score_counts) {
    allow_dependents();
    __shared__ float maxima[WARPS][8];
#if !KEEP
    __shared__ double sums[WARPS][8];
#endif
    const int kv = blockIdx.x, H_kv = gridDim.x, t = blockIdx.y, T = gridDim.y, sequence = blockIdx.z;
    const int w = min((lengths ? lengths[sequence] : n_most) - t * TILE, TILE);
    if (w <= 0) return;
    const i64 head = (i64)sequence * H_kv + kv;
    Scores tile;
    score_tile(q + head * G * D, k + sequence * k_sequence + (i64)t * TILE * k_row + kv * D, k_row, w, scale, maxima, tile);
#if !KEEP
    double sum[2];
    exponentials(tile, sum);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = lane & 3;
    if (lane < 4) {
        sums[warp][c * 2] = sum[0];
        sums[warp][c * 2 + 1] = sum[1];
    }
#endif
    float *const stash = u + (head * T + t) * (G * PITCH);
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (head_of(i) < G && key_of(band, i) < PITCH) stash[head_of(i) * PITCH + key_of(band, i)] = tile.s[band][i];
    __syncthreads();
    if (threadIdx.x < 4)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (head_of(i) >= G) continue;
            m[(head * G + head_of(i)) * T + t] = tile.m[i];
#if !KEEP
            double total = 0;
#pragma unroll
            for (int other = 0; other < WARPS; other++) total += sums[other][head_of(i)];
            ell[(head * G + head_of(i)) * T + t] = total;
#endif
        }
    count_scores(score_counts + (head * T + t) * 8, w, t == 0);
}
