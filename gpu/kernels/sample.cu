// Budgets, draws and gather, from the stash alone (Algorithms 4 and 5 of arXiv:2605.01910). Grid: splits x heads x sequences.
//
// Every block works out its head's tile masses and their prefix (exact in float64, so all blocks agree), then draws its
// part of the S samples: half a warp (a whole one for long tiles) takes a few samples at a time, reads the u of their tiles,
// finds their keys, and adds their rows of V. Tiles without a sample are never read. The partial sums of a head are added in a fixed order, through the
// cluster's shared memory (CLUSTER = 1: a head's splits are one cluster) or by the block that finishes last.
//
// THREADS of a block;  DEPTH: samples of a team whose u is on its way at a time
// EVERY_TILE  1: count a scan of tiles without a sample too, as one global CDF makes it
// METHOD 0: one systematic sample over all tiles; 1: largest remainder; 2: independent; 3: one draw per stratum

#include "common.cuh"
#include "draw.cuh"
#include "largest.cuh"

#define SAMPLE_WARPS (THREADS / 32)
#define TEAM (TILE <= 128 ? 16 : 32)  // lanes that work on one sample
#define TEAMS (THREADS / TEAM)
#define FEATURES (D / TEAM)

struct Between {
    double doubles[SAMPLE_WARPS];
    int ints[SAMPLE_WARPS];
};

// mass of a tile on a grid of 2^-32, so that float64 sums of masses are exact in any order
__device__ __forceinline__ double mass_of(float m, float top, double ell) {
    return __dmul_rn(rint(__dmul_rn(__dmul_rn(exp((double)m - (double)top), ell), 4294967296.0)), 2.3283064365386963e-10);
}

// asks for one line of each 2 MB page of a range, so that the translation of its addresses is at hand
__device__ __forceinline__ void find_pages(const void *at, i64 bytes) {
    const i64 offset = (i64)threadIdx.x << 21;
    if (offset < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)at + offset));
}

// v [B, n, H_kv, D];  u, m, ell from the score pass;  T tiles of the longest sequence;  S samples per head
// per_split: samples of one block;  head0: layer * H;  positions [B], the queries' positions, or null: `position` each
// out [B, H, D];  partial [B, H, splits, D] and tickets [B, H] (zero before and after): the splits' sums, if not CLUSTER
// budget_counts [B, H_kv, 9], draw_counts [B, H_kv, T, 4], value_counts [B, H_kv, T, 4], budgets [B, H, T], rows [B, H, S]
// masses [B, H, T], heaps [B, H, T]: the trace's build only
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
sample(const u16 *__restrict__ v, const int *__restrict__ lengths, int n_most, i64 v_sequence, i64 v_row, int T, int S, int per_split,
       u64 seed, u32 sequence0, u32 sequence_step, u32 head0, u32 position, const u32 *__restrict__ positions, int by_threshold,
       const float *__restrict__ u, const float *__restrict__ m, const double *__restrict__ ell, out_t *__restrict__ out,
       float *partial, u32 *tickets, i64 *budget_counts, i64 *draw_counts, i64 *value_counts, i64 *budgets, int *rows, double *tile_masses,
       int *heaps) {
    extern __shared__ __align__(16) double dynamic[];
    float *const ring = (float *)dynamic;  // [TEAMS][DEPTH][PITCH], the u of coming samples' tiles
#if METHOD == 1
    Boundary &boundary = *(Boundary *)dynamic;  // until the ring is filled
    constexpr int BEFORE = sizeof(Boundary);
#else
    constexpr int BEFORE = 0;
#endif
    constexpr int RING = TEAMS * DEPTH * PITCH * 4;
    double *const masses = dynamic + (RING > BEFORE ? RING : BEFORE) / 8;  // [T]
    Sample *const samples = (Sample *)(masses + T);  // [per_split]; then, for METHOD 1, budgets and bins of fractions
    __shared__ Between between;
    __shared__ float sums[SAMPLE_WARPS][D];
    const int split = blockIdx.x, h = blockIdx.y, H = gridDim.y, sequence = blockIdx.z;
    const int kv = h / G, H_kv = H / G, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 head = (i64)sequence * H + h, kv_head = (i64)sequence * H_kv + kv;
    const int n = lengths ? lengths[sequence] : n_most;
    const int tiles = (n + TILE - 1) / TILE;
    const int first_sample = split * per_split, count = min(S - first_sample, per_split);
    const bool counting = INSTRUMENT && split == 0;
    (void)counting;
    Stream random = {(u32)seed, (u32)(seed >> 32), sequence0 + sequence * sequence_step, head0 + h, positions ? positions[sequence] : position};

    // what needs no scores is worked out while they are still being made: draws, and the pages
    const int each = (tiles + THREADS - 1) / THREADS;
    const int first = min((int)threadIdx.x * each, tiles), last = min(first + each, tiles);
#if METHOD == 0
    const double offset = uniform(random, 0);
#elif METHOD == 1
    const double offsets[2] = {uniform(random, first), uniform(random, first + 1)};
    clear(boundary);
#else
    const double first_draw = uniform(random, first_sample + threadIdx.x);
#endif
    find_pages(v + sequence * v_sequence + kv * D, (i64)n * v_row * 2);
    find_pages(u + kv_head * T * G * PITCH, (i64)tiles * G * PITCH * 4);
    tell_of_start();
    wait_for_predecessor();
    m += head * T;
    ell += head * T;
    float sum[FEATURES];
#pragma unroll
    for (int i = 0; i < FEATURES; i++) sum[i] = 0;

    if (n > 0) {
        // ---- tile masses on a grid of 2^-32, and their prefix ----
        const float m_first[2] = {first < last ? m[first] : -INFINITE, first + 1 < last ? m[first + 1] : -INFINITE};
        const double ell_first[2] = {first < last ? ell[first] : 0.0, first + 1 < last ? ell[first + 1] : 0.0};
        float top = fmaxf(m_first[0], m_first[1]);
#pragma unroll 1
        for (int t = first + 2; t < last; t++) top = fmaxf(top, m[t]);
        top = max_of_block(top, between.doubles);
        double mine = 0, Z;
#pragma unroll 1
        for (int t = first; t < last; t += 2) {  // two at a time, for their exponentials to overlap
            const bool both = t + 1 < last;
            const double one = mass_of(t == first ? m_first[0] : m[t], top, t == first ? ell_first[0] : ell[t]);
            const double other = mass_of(t == first ? m_first[1] : both ? m[t + 1] : -INFINITE, top, t == first ? ell_first[1] : both ? ell[t + 1] : 0.0);
            masses[t] = one;
            if (both) masses[t + 1] = other;
            mine += one + other;
        }
#if INSTRUMENT
        for (int t = first; counting && t < last; t++) {
            tile_masses[head * T + t] = masses[t];
            COUNT(budget_counts[kv_head * 9 + 0], 1);  // exponentials
            COUNT(budget_counts[kv_head * 9 + 1], 1);  // maximum
            COUNT(budget_counts[kv_head * 9 + 2], 1);
            COUNT(budget_counts[kv_head * 9 + 3], 1);
            COUNT(budget_counts[kv_head * 9 + 6], 1);  // prefix
        }
#endif
        double prefix = scan_block(mine, between.doubles, Z);
        (void)prefix;

#if METHOD == 0
        // ---- positions: prefix * S / Z + offset; a tile holds the whole numbers between its first and last position ----
        const double scale = __ddiv_rn((double)S, Z), end = __dadd_rn((double)S, offset);
        double low = prefix == 0 ? offset : prefix == Z ? end : smaller(__dadd_rn(offset, __dmul_rn(scale, prefix)), end);
        if (counting && threadIdx.x == 0) {
            COUNT(budget_counts[kv_head * 9 + 4], 1);
            COUNT(budget_counts[kv_head * 9 + 7], 1);
        }
#pragma unroll 1
        for (int t = first; t < last; t++) {
            prefix += masses[t];
            const double high = prefix == Z ? end : smaller(__dadd_rn(offset, __dmul_rn(scale, prefix)), end);
            const int from = (int)floor(low), to = (int)floor(high);
            if (max(from, first_sample) < min(to, first_sample + count)) {
                const double sum = t == first ? ell_first[0] : t == first + 1 ? ell_first[1] : ell[t], slope = scale_of(low, high, sum, by_threshold);
#pragma unroll 1
                for (int k = max(from, first_sample); k < min(to, first_sample + count); k++)
                    samples[k - first_sample] = sample_of(k + 1, low, slope, sum, t, by_threshold);
            }
            low = high;
#if INSTRUMENT
            if (counting) {
                budgets[head * T + t] = to - from;
                COUNT(budget_counts[kv_head * 9 + 7], 1);
                COUNT(budget_counts[kv_head * 9 + 6], 2);
                COUNT(budget_counts[kv_head * 9 + 8], 1);
            }
#endif
        }
#elif METHOD == 1
        // ---- floor(S * mass / Z), and one more for the largest fractions; ties to the lowest tile ----
        const double scale = __ddiv_rn((double)S, Z);
        double *const fractions = masses;  // in their place
        int *const budget = (int *)(samples + per_split), *const bins = budget + T;
        int whole = 0, here = 0, total;
#pragma unroll 1
        for (int t = first; t < last; t += 2) {  // two at a time, as above
            const double share[2] = {__dmul_rn(scale, masses[t]), t + 1 < last ? __dmul_rn(scale, masses[t + 1]) : 0.0};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const double below = floor(share[i]), fraction = __dsub_rn(share[i], below);
                const int given = (int)below, bin = bin_of(fraction);
                if (t + i < last) {
                    fractions[t + i] = fraction;
                    budget[t + i] = given;
                    bins[t + i] = bin;
                    atomicAdd(&boundary.bins[bin], 1);
                    atomicAdd(&boundary.groups[bin / 32], 1);
                }
                whole += given;
            }
        }
        whole = __reduce_add_sync(FULL, whole);
        if (lane == 0) atomicAdd(&boundary.wholes, whole);
        __syncthreads();
        const int left = S - boundary.wholes;
        take_largest(fractions, bins, first, last, each, left, boundary, between.ints, budget);
#pragma unroll 1
        for (int t = first; t < last; t++) here += budget[t];
        int place = scan_block(here, between.ints, total);
#pragma unroll 1
        for (int t = first; t < last; t++) {
            const int from = max(place, first_sample), to = min(place + budget[t], first_sample + count);
            if (from < to) {
                const double low = t == first ? offsets[0] : t == first + 1 ? offsets[1] : uniform(random, t), high = __dadd_rn(low, (double)budget[t]);
                const double sum = t == first ? ell_first[0] : t == first + 1 ? ell_first[1] : ell[t], slope = scale_of(low, high, sum, by_threshold);
#pragma unroll 1
                for (int k = from; k < to; k++) samples[k - first_sample] = sample_of(k - place + 1, low, slope, sum, t, by_threshold);
            }
            place += budget[t];
#if INSTRUMENT
            if (counting) {
                budgets[head * T + t] = budget[t];
                COUNT(budget_counts[kv_head * 9 + 7], 1);
                COUNT(budget_counts[kv_head * 9 + 8], 1);
                COUNT(budget_counts[kv_head * 9 + 6], 2);
                COUNT(budget_counts[kv_head * 9 + 4], 1);
            }
#endif
        }
#if INSTRUMENT
        if (counting && threadIdx.x == 0) {
            COUNT(budget_counts[kv_head * 9 + 7], 1);
            COUNT(budget_counts[kv_head * 9 + 6], left);
            COUNT(budget_counts[kv_head * 9 + 5], heap_compares(fractions, tiles, left, heaps + head * T));
        }
#endif
#else
        // ---- S thresholds, over the whole distribution or one in each of S equal strata ----
        double *const through = (double *)(samples + per_split);  // prefix after each tile
#pragma unroll 1
        for (int t = first; t < last; t++) {
            prefix += masses[t];
            through[t] = prefix;
        }
        __syncthreads();
#pragma unroll 1
        for (int j = threadIdx.x; j < count; j += THREADS) {
            const double drawn = j == threadIdx.x ? first_draw : uniform(random, first_sample + j);
#if METHOD == 3
            const double threshold = __dmul_rn(__dadd_rn((double)(first_sample + j), drawn), __ddiv_rn(Z, (double)S));
#else
            const double threshold = __dmul_rn(drawn, Z);
#endif
            int from = 0, to = tiles - 1, compares = 0;
            while (from < to) {
                const int middle = (from + to) >> 1;
                compares++;
                if (through[middle] > threshold || through[middle] == Z) to = middle;
                else from = middle + 1;
            }
            const double before = from ? through[from - 1] : 0.0;
            const double inside = __dmul_rn(__dsub_rn(threshold, before), __ddiv_rn(ell[from], masses[from]));
            samples[j] = Sample{inside, 0.0, 1.0, ell[from], from, 0};
#if INSTRUMENT
            COUNT(budgets[head * T + from], 1);
            COUNT(budget_counts[kv_head * 9 + 4], 1);
            COUNT(budget_counts[kv_head * 9 + 5], compares);
            COUNT(budget_counts[kv_head * 9 + 6], METHOD == 3 ? 2 : 1);
            COUNT(budget_counts[kv_head * 9 + 7], 2);
#endif
        }
#endif
        __syncthreads();

#if INSTRUMENT
        // ---- what drawing costs: a scan of u in each tile with a budget, or in all of them for one global CDF ----
#pragma unroll 1
        for (int t = first; counting && t < last; t++) {
            const int w = min(n - t * TILE, TILE);
            i64 *const counts = draw_counts + (kv_head * T + t) * 4;
#if METHOD >= 2
            COUNT(counts[1], w);
#else
            const i64 budget = budgets[head * T + t];
            if (budget == 0 && !EVERY_TILE) continue;
            COUNT(counts[0], by_threshold ? w + budget : 0);
            COUNT(counts[1], by_threshold ? w + budget + 1 : 3 * w);
            COUNT(counts[2], by_threshold ? budget + 1 : w + 1);
            COUNT(counts[3], by_threshold ? 0 : w + 1);
#endif
        }
#endif

        // ---- draw and gather ----
        const float *const stash = u + (kv_head * T * G + h % G) * PITCH;
        const u16 *const values = v + sequence * v_sequence + kv * D;
        // a warp's teams take neighbouring samples; the u of DEPTH of a team's samples are on their way at a time
        const int team = threadIdx.x / TEAM;
        float *const own_ring = ring + team * (DEPTH * PITCH);
        const auto fetch = [&](int number) {
            if (number * TEAMS + warp * (32 / TEAM) < count) {
                const float *const from = stash + (i64)samples[min(number * TEAMS + team, count - 1)].tile * (G * PITCH);
                for (int i = lane % TEAM * 4; i < PITCH; i += TEAM * 4) copy_in_group(own_ring + number % DEPTH * PITCH + i, from + i);
            }
            end_group();
        };
#pragma unroll
        for (int i = 0; i < DEPTH; i++) fetch(i);
        Row<TEAM> row = {};  // of the sample before, whose load ends while the next key is looked for
#pragma unroll 1
        for (int number = 0; number * TEAMS + warp * (32 / TEAM) < count; number++) {
            const int own = number * TEAMS + team;
            wait_for_groups<DEPTH - 1>();
            __syncwarp();
            const Sample s = samples[min(own, count - 1)];
            const float *const here = own_ring + number % DEPTH * PITCH;
            float x[CHUNK_OF(TEAM)];
            load_chunk<TEAM>(here, x);
            const int j = find_key<TEAM>(s, here, x);
            const int key = s.tile * TILE + j;
            add_row<TEAM>(sum, row);
            row = {};
            if (own < count) row = load_row<TEAM>(values + (i64)key * v_row);
            __syncwarp();
            fetch(number + DEPTH);
#if INSTRUMENT
            if (lane % TEAM == 0 && own < count) {
                rows[head * S + first_sample + own] = key;
                COUNT(value_counts[(kv_head * T + s.tile) * 4 + 0], D);
                COUNT(value_counts[(kv_head * T + s.tile) * 4 + 2], D);
#if METHOD >= 2
                int from = 0, to = min(n - s.tile * TILE, TILE) - 1, compares = 0;
                for (; from < to; compares++) {  // the path of a binary search that ends at j
                    const int middle = (from + to) >> 1;
                    if (middle >= j) to = middle;
                    else from = middle + 1;
                }
                COUNT(draw_counts[(kv_head * T + s.tile) * 4], compares);
#endif
            }
#endif
        }
        add_row<TEAM>(sum, row);
    }

    // ---- add up: a warp's teams, the warps, then the splits, each in order ----
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        if (TEAM == 16) sum[i] += __shfl_xor_sync(FULL, sum[i], 16);
        if (lane < TEAM) sums[warp][lane * FEATURES + i] = sum[i];
    }
    __syncthreads();
    float total = 0;
    if (threadIdx.x < D)
#pragma unroll
        for (int i = 0; i < SAMPLE_WARPS; i++) total += sums[i][threadIdx.x];
    const float share = 1.0f / (float)S;
#if CLUSTERED
    total = sum_of_cluster(total);
    if (split == 0 && threadIdx.x < D) store_output(out + head * D + threadIdx.x, total * share);
#else
    const int splits = gridDim.x;
    if (splits > 1) {
        __shared__ u32 ticket;
        if (threadIdx.x < D) {
            __stcg(partial + (head * splits + split) * D + threadIdx.x, total);
            __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0) ticket = atomicAdd(tickets + head, 1);
        __syncthreads();
        if (ticket == splits - 1) {
            __threadfence();
            if (threadIdx.x == 0) tickets[head] = 0;
            total = 0;
            if (threadIdx.x < D) {
#pragma unroll 4
                for (int i = 0; i < splits; i++) total += __ldcg(partial + (head * splits + i) * D + threadIdx.x);
                store_output(out + head * D + threadIdx.x, total * share);
            }
        }
    } else if (threadIdx.x < D) {
        store_output(out + head * D + threadIdx.x, total * share);
    }
#endif
}
