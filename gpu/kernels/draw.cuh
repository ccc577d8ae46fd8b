// Draws inside one tile, by one warp: the key at which a sample's whole number, or its threshold, is reached.
// Every float64 step is rounded as the CPU's kernels round it (no fused multiply-add), so that the keys are the same.

#define CHUNK ((PITCH + 127) / 128 * 4)  // consecutive keys of a lane

// u of this lane's keys; zero beyond the tile
__device__ __forceinline__ void load_chunk(const float *u, float (&x)[CHUNK]) {
    const int first = (threadIdx.x & 31) * CHUNK;
#pragma unroll
    for (int i = 0; i < CHUNK; i += 4) {
        const float4 four = first + i < PITCH ? *(const float4 *)(u + first + i) : make_float4(0, 0, 0, 0);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

// A tile's share of a systematic sample: positions run from `low` to `high` as the running sum of u goes from 0 to `total`.
struct Positions {
    double low, high, total, scale;
    bool by_threshold;

    __device__ __forceinline__ Positions(double low, double high, double total, bool by_threshold)
        : low(low), high(high), total(total), by_threshold(by_threshold) {
        scale = by_threshold ? (high > low ? __ddiv_rn(total, __dsub_rn(high, low)) : 0.0) : __ddiv_rn(__dsub_rn(high, low), total);
    }
    // true from the key on that sample k falls on
    __device__ __forceinline__ bool reached(double k, double running) const {
        if (by_threshold) return running >= fmin(__dmul_rn(__dsub_rn(k, low), scale), total);
        return (running == total ? high : fmin(__dadd_rn(low, __dmul_rn(scale, running)), high)) >= k;
    }
};

// An independent draw: `k` is the threshold in units of u
struct Threshold {
    double total;
    __device__ __forceinline__ bool reached(double k, double running) const { return running > k || running == total; }
};

// Key of sample k within its tile; the same in all lanes
template <class Rule>
__device__ __forceinline__ int find_key(const Rule &rule, double k, const float (&x)[CHUNK]) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) sum += (double)x[i];
    const double through = scan_warp(sum);
    const u32 lanes = __ballot_sync(FULL, rule.reached(k, through));
    const int lane = __ffs(lanes) - 1;
    double running = through - sum;  // exact: multiples of 2^-40 below 2^13
    int before = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        running += (double)x[i];
        before += !rule.reached(k, running);
    }
    return __shfl_sync(FULL, (threadIdx.x & 31) * CHUNK + before, lane);
}

// ---- a row of V, spread over a warp: lane i holds D / 32 consecutive features ----

#define FEATURES (D / 32)

struct Row {
    u32 pairs[FEATURES / 2];
};

__device__ __forceinline__ Row load_row(const u16 *at) {
    Row row;
    at += (threadIdx.x & 31) * FEATURES;
#if D == 64
    row.pairs[0] = __ldg((const u32 *)at);
#elif D == 128
    const uint2 x = __ldg((const uint2 *)at);
    row.pairs[0] = x.x, row.pairs[1] = x.y;
#else
    const uint4 x = __ldg((const uint4 *)at);
    row.pairs[0] = x.x, row.pairs[1] = x.y, row.pairs[2] = x.z, row.pairs[3] = x.w;
#endif
    return row;
}

__device__ __forceinline__ void add_row(float (&sum)[FEATURES], const Row &row) {
#pragma unroll
    for (int i = 0; i < FEATURES / 2; i++) {
        sum[2 * i] += low_half(row.pairs[i]);
        sum[2 * i + 1] += high_half(row.pairs[i]);
    }
}
