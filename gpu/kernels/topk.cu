// Top-k: the keys of the k largest scores, ties to the lowest key, in key order; then the softmax of the selected and their
// weighted rows of V. Grid: 1 x heads x sequences. Three rounds of histograms over the bits of the scores find the k-th, among
// those that reach a bound which the tiles' maxima give, or among all.

#include "common.cuh"
#include "draw.cuh"
#include "largest.cuh"

#define TOP_BINS 2048
#define LISTED_TILES 1024
#define LISTED_KEYS 2048

// bits that order as the numbers do
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);  // -0 becomes 0, which it equals
    return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ float number_of(u32 bits) { return __uint_as_float(bits ^ ((bits >> 31) ? 0x80000000u : 0xffffffffu)); }

// scores of one head in the stash, all of them
struct Stashed {
    const float *u;

    __device__ __forceinline__ float operator[](int key) const { return u[(i64)(key / TILE) * (G * PITCH) + key % TILE]; }
    __device__ __forceinline__ u32 bits(int key) const { return ordered((*this)[key]); }
    __device__ __forceinline__ int key(int i) const { return i; }
};

struct Maxima {
    const float *m;

    __device__ __forceinline__ u32 bits(int t) const { return ordered(m[t]); }
};

// the scores that reach a bound, in key order
struct Listed {
    u32 scores[LISTED_KEYS];
    int keys[LISTED_KEYS];

    __device__ __forceinline__ u32 bits(int i) const { return scores[i]; }
    __device__ __forceinline__ int key(int i) const { return keys[i]; }
};

struct Histogram {
    int bins[TOP_BINS];
    int between[THREADS / 32];
    int found[2];  // the bin of the k-th largest, and how many lie above it
};

// The bits of the k-th largest of x[0] ... x[n - 1], 11, 11 and 10 at a time; `left` becomes how many that equal it are taken.
template <class X>
__device__ __forceinline__ u32 cut_of(const X &x, int n, int k, Histogram &h, int &left) {
    u32 cut = 0, known = 0;
    int total;
    left = k;
#pragma unroll 1
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const u32 digit = shift ? 2047 : 1023;
        for (int i = threadIdx.x; i < TOP_BINS; i += THREADS) h.bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const u32 bits = x.bits(i);
            if ((bits & known) == cut) atomicAdd(&h.bins[bits >> shift & digit], 1);
        }
        __syncthreads();
        const int first = TOP_BINS - 1 - threadIdx.x * (TOP_BINS / THREADS);
        int own = 0;
        for (int i = 0; i < TOP_BINS / THREADS; i++) own += h.bins[first - i];
        int above = scan_block(own, h.between, total);
        for (int i = 0; i < TOP_BINS / THREADS; i++) {
            const int here = h.bins[first - i];
            if (above < left && left <= above + here) {
                h.found[0] = first - i;
                h.found[1] = above;
            }
            above += here;
        }
        __syncthreads();
        cut |= (u32)h.found[0] << shift;
        known |= digit << shift;
        left -= h.found[1];
        __syncthreads();
    }
    return cut;
}

// Rows and scores of the k largest of x, in key order; a thread looks at consecutive entries.
template <class X>
__device__ __forceinline__ void take(const X &x, int n, int k, Histogram &h, int *rows, float *scores) {
    int left, total;
    const u32 cut = cut_of(x, n, k, h, left);
    const int each = (n + THREADS - 1) / THREADS, from = min((int)threadIdx.x * each, n), to = min(from + each, n);
    int larger = 0, ties = 0;
    for (int i = from; i < to; i++) {
        const u32 bits = x.bits(i);
        larger += bits > cut;
        ties += bits == cut;
    }
    int place = scan_block(larger, h.between, total), tie = scan_block(ties, h.between, total);
    place += min(tie, left);
    for (int i = from; i < to; i++) {
        const u32 bits = x.bits(i);
        if (bits > cut || (bits == cut && tie++ < left)) {
            rows[place] = x.key(i);
            scores[place++] = number_of(bits);
        }
    }
}

// The scores that reach `bound`, from the listed tiles, in key order; a warp takes consecutive tiles, twice: once to count.
// Returns how many there are; beyond LISTED_KEYS nothing is listed.
__device__ __forceinline__ int list_keys(const float *u, const int *tiles, int count, u32 bound, int *between, Listed &listed) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int each = (count + THREADS / 32 - 1) / (THREADS / 32), from = min(warp * each, count), to = min(from + each, count);
    int found = 0, place = 0, total = 0;
#pragma unroll 1
    for (int writing = 0; writing < 2; writing++) {
#pragma unroll 4
        for (int i = from; i < to; i++)
#pragma unroll 1
            for (int first = lane * 4; first < (PITCH + 127) / 128 * 128; first += 128) {
                const float *const at = u + (i64)tiles[i] * (G * PITCH) + first;
                const float4 four = first < PITCH ? *(const float4 *)at : make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
                const u32 bits[4] = {ordered(four.x), ordered(four.y), ordered(four.z), ordered(four.w)};
                int own = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) own += bits[j] >= bound;
                found += own;
                if (!writing || !__any_sync(FULL, own)) continue;
                const int through = scan_warp<32>(own);
                int slot = place + through - own;
                place += __shfl_sync(FULL, through, 31);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (bits[j] >= bound) {
                        listed.scores[slot] = bits[j];
                        listed.keys[slot++] = tiles[i] * TILE + first + j;
                    }
            }
        if (writing) break;
        const int of_warp = __reduce_add_sync(FULL, found);
        place = scan_block(lane == 0 ? of_warp : 0, between, total);
        place = __shfl_sync(FULL, place, 0);
        if (total > LISTED_KEYS) break;
    }
    __syncthreads();
    return total;
}

// v, lengths as for `sample`;  u [B, H_kv, T, G, PITCH], the scores, and m [B, H, T], their maxima;
// selected int32 and selected_scores [B, H, k_most], results
// select_counts [B, H_kv, 4], value_counts [B, H_kv, T, 4], budgets [B, H, T], heaps [B, H, k_most]: the trace's build only
extern "C" __global__ void __launch_bounds__(THREADS)
topk(const u16 *__restrict__ v, const int *__restrict__ lengths, int n_most, i64 v_sequence, i64 v_row, int T, int k_most,
     const float *__restrict__ u, const float *__restrict__ m, out_t *__restrict__ out, int *selected, float *selected_scores, i64 *select_counts, i64 *value_counts, i64 *budgets,
     int *heaps) {
    __shared__ Histogram histogram;
    __shared__ Listed listed;
    __shared__ int tiles_listed[LISTED_TILES];
    __shared__ double totals[THREADS / 32];
    __shared__ float sums[THREADS / 32][D];
    const int h = blockIdx.y, H = gridDim.y, sequence = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int kv = h / G, H_kv = H / G, n = lengths ? lengths[sequence] : n_most, k = min(k_most, n);
    const i64 head = (i64)sequence * H + h, kv_head = (i64)sequence * H_kv + kv;
    const Stashed scores = {u + (kv_head * T * G + h % G) * PITCH};
    int *const rows = selected + head * k_most;
    float *const weights = selected_scores + head * k_most;
    wait_for_predecessor();
    if (n == 0) {
        if (threadIdx.x < D) store_output(out + head * D + threadIdx.x, 0.0f);
        return;
    }

    // ---- k tiles' maxima reach the k-th largest maximum, so k scores do: only those that do can be among the k largest ----
    const int tiles = (n + TILE - 1) / TILE;
    int candidates = LISTED_KEYS + 1;
    if (k <= tiles) {
        int left, count;
        const Maxima maxima = {m + head * T};
        const u32 bound = cut_of(maxima, tiles, k, histogram, left);
        const int each = (tiles + THREADS - 1) / THREADS, from = min((int)threadIdx.x * each, tiles), to = min(from + each, tiles);
        int reach = 0;
        for (int t = from; t < to; t++) reach += maxima.bits(t) >= bound;
        int place = scan_block(reach, histogram.between, count);
        if (count <= LISTED_TILES) {
            for (int t = from; t < to; t++)
                if (maxima.bits(t) >= bound) tiles_listed[place++] = t;
            __syncthreads();
            candidates = list_keys(scores.u, tiles_listed, count, bound, histogram.between, listed);
        }
    }
    if (candidates <= LISTED_KEYS) take(listed, candidates, k, histogram, rows, weights);
    else take(scores, n, k, histogram, rows, weights);
    __syncthreads();
#if INSTRUMENT
    for (int i = threadIdx.x; i < k; i += THREADS) {
        const int t = rows[i] / TILE;
        COUNT(budgets[head * T + t], 1);
        for (int j = 0; j < 3; j++) COUNT(value_counts[(kv_head * T + t) * 4 + j], D);
        COUNT(select_counts[kv_head * 4 + 1], 1);
        COUNT(select_counts[kv_head * 4 + 2], 1);
        COUNT(select_counts[kv_head * 4 + 3], 2);
    }
    if (threadIdx.x == 0) COUNT(select_counts[kv_head * 4], heap_compares(scores, n, k, heaps + head * k_most));
#endif
    __syncthreads();

    // ---- softmax of the selected, and their rows of V ----
    float top = -INFINITE;
    for (int i = threadIdx.x; i < k; i += THREADS) top = fmaxf(top, weights[i]);
    top = max_of_block(top, totals);
    __syncthreads();
    const u16 *const values = v + sequence * v_sequence + kv * D;
    float sum[D / 32];
    double weight_sum = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) sum[i] = 0;
#pragma unroll 1
    for (int i = warp * 4; i < k; i += THREADS / 32 * 4) {
        Row<32> row[4];
        float weight[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = min(i + j, k - 1);
            row[j] = load_row<32>(values + (i64)rows[at] * v_row);
            weight[j] = i + j < k ? expf(weights[at] - top) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j < k) add_row<32>(sum, row[j], weight[j]);
            weight_sum += (double)weight[j];
        }
    }
    if (lane == 0) totals[warp] = weight_sum;
#pragma unroll
    for (int i = 0; i < D / 32; i++) sums[warp][lane * (D / 32) + i] = sum[i];
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
