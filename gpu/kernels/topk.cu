// Top-k: the keys of the k largest scores, ties to the lowest key, in key order; then the softmax of the selected and their
// weighted rows of V. Grid: 1 x heads x sequences. Three rounds of histograms over the bits of the scores find the k-th.

#include "common.cuh"
#include "draw.cuh"
#include "largest.cuh"

#define TOP_BINS 2048

// scores of one head in the stash
struct Stashed {
    const float *u;

    __device__ __forceinline__ float operator[](int key) const { return u[(i64)(key / TILE) * (G * PITCH) + key % TILE]; }
};

// bits that order as the numbers do
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);  // -0 becomes 0, which it equals
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}

// v, lengths as for `sample`;  u [B, H_kv, T, G, PITCH], the scores;  rows int32 and weights [B, H, k_most], work space
// select_counts [B, H_kv, 4], value_counts [B, H_kv, T, 4], budgets [B, H, T], heaps [B, H, k_most]: the trace's build only
extern "C" __global__ void __launch_bounds__(THREADS)
topk(const u16 *__restrict__ v, const int *__restrict__ lengths, int n_most, i64 v_sequence, i64 v_row, int T, int k_most,
     const float *__restrict__ u, out_t *__restrict__ out, int *rows, float *weights, i64 *select_counts, i64 *value_counts, i64 *budgets,
     int *heaps) {
    __shared__ int bins[TOP_BINS];
    __shared__ int between[THREADS / 32];
    __shared__ double totals[THREADS / 32];
    __shared__ float sums[THREADS / 32][D];
    __shared__ int found[2];  // the bin of the k-th largest, and how many lie above it
    const int h = blockIdx.y, H = gridDim.y, sequence = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int kv = h / G, H_kv = H / G, n = lengths ? lengths[sequence] : n_most, k = min(k_most, n);
    const i64 head = (i64)sequence * H + h, kv_head = (i64)sequence * H_kv + kv;
    const Stashed scores = {u + (kv_head * T * G + h % G) * PITCH};
    rows += head * k_most;
    weights += head * k_most;
    wait_for_predecessor();
    if (n == 0) {
        if (threadIdx.x < D) store_output(out + head * D + threadIdx.x, 0.0f);
        return;
    }

    // ---- the bits of the k-th largest score, 11, 11 and 10 at a time ----
    u32 cut = 0, known = 0;
    int left = k, total;  // how many of those that share the known bits are taken
#pragma unroll 1
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const u32 digit = shift ? 2047 : 1023;
        for (int i = threadIdx.x; i < TOP_BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        for (int key = threadIdx.x; key < n; key += THREADS) {
            const u32 bits = ordered(scores[key]);
            if ((bits & known) == cut) atomicAdd(&bins[bits >> shift & digit], 1);
        }
        __syncthreads();
        const int first = TOP_BINS - 1 - threadIdx.x * (TOP_BINS / THREADS);
        int own = 0;
        for (int i = 0; i < TOP_BINS / THREADS; i++) own += bins[first - i];
        int above = scan_block(own, between, total);
        for (int i = 0; i < TOP_BINS / THREADS; i++) {
            const int here = bins[first - i];
            if (above < left && left <= above + here) {
                found[0] = first - i;
                found[1] = above;
            }
            above += here;
        }
        __syncthreads();
        cut |= (u32)found[0] << shift;
        known |= digit << shift;
        left -= found[1];
        __syncthreads();
    }

    // ---- rows in key order: a thread looks at consecutive keys ----
    const int each = (n + THREADS - 1) / THREADS, from = min((int)threadIdx.x * each, n), to = min(from + each, n);
    int larger = 0, ties = 0;
    for (int key = from; key < to; key++) {
        const u32 bits = ordered(scores[key]);
        larger += bits > cut;
        ties += bits == cut;
    }
    int place = scan_block(larger, between, total), tie = scan_block(ties, between, total);
    place += min(tie, left);
    for (int key = from; key < to; key++) {
        const float score = scores[key];
        const u32 bits = ordered(score);
        if (bits > cut || (bits == cut && tie++ < left)) {
            rows[place] = key;
            weights[place++] = score;
#if INSTRUMENT
            COUNT(budgets[head * T + key / TILE], 1);
            COUNT(value_counts[(kv_head * T + key / TILE) * 4 + 0], D);
            COUNT(value_counts[(kv_head * T + key / TILE) * 4 + 1], D);
            COUNT(value_counts[(kv_head * T + key / TILE) * 4 + 2], D);
            COUNT(select_counts[kv_head * 4 + 1], 1);
            COUNT(select_counts[kv_head * 4 + 2], 1);
            COUNT(select_counts[kv_head * 4 + 3], 2);
#endif
        }
    }
#if INSTRUMENT
    if (threadIdx.x == 0) COUNT(select_counts[kv_head * 4], heap_compares(scores, n, k, heaps + head * k_most));
#endif
    __syncthreads();

    // ---- softmax of the selected, and their rows of V ----
    float top = -INFINITE;
    for (int i = threadIdx.x; i < k; i += THREADS) top = fmaxf(top, weights[i]);
    top = max_of_warp(top);
    if (lane == 0) totals[warp] = top;
    __syncthreads();
    top = max_of_warp((float)totals[lane % (THREADS / 32)]);
    __syncthreads();
    const u16 *const values = v + sequence * v_sequence + kv * D;
    float sum[FEATURES];
    double weight_sum = 0;
#pragma unroll
    for (int i = 0; i < FEATURES; i++) sum[i] = 0;
#pragma unroll 1
    for (int i = warp * 4; i < k; i += THREADS / 32 * 4) {
        Row row[4];
        float weight[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = min(i + j, k - 1);
            row[j] = load_row(values + (i64)rows[at] * v_row);
            weight[j] = i + j < k ? expf(weights[at] - top) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j < k) add_row(sum, row[j], weight[j]);
            weight_sum += (double)weight[j];
        }
    }
    if (lane == 0) totals[warp] = weight_sum;
#pragma unroll
    for (int i = 0; i < FEATURES; i++) sums[warp][lane * FEATURES + i] = sum[i];
    __syncthreads();
    if (threadIdx.x < D) {
        float result = 0;
        double all = 0;
        for (int i = 0; i < THREADS / 32; i++) {
            result += sums[i][threadIdx.x];
            all += totals[i];
        }
        store_output(out + head * D + threadIdx.x, result * (float)(1.0 / all));
    }
}
