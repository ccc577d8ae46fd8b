// Which of n fractions in [0, 1) are the `left` largest, ties to the lowest index; by a block, for largest remainder.
//
// Two histograms, of 1024 bins and of 32 groups of them, find the bin that holds the last one taken; every warp looks for it by
// itself, without a barrier. The few fractions of that bin are then ranked against each other.
// Where a bin holds more than a block has threads (many tiles of equal mass), a bisection over the bit patterns cuts instead.

#define BINS 1024

struct Boundary {
    int bins[BINS], groups[32];
    i64 values[THREADS];  // of the boundary's bin: bit patterns, which order as the fractions do, and indices
    int indices[THREADS];
    int wholes, listed;  // what is given to tiles before; how many of the boundary's bin are listed
};

__device__ __forceinline__ int bin_of(double fraction) { return (int)(fraction * BINS); }

__device__ __forceinline__ void clear(Boundary &boundary) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) boundary.bins[i] = 0;
    if (threadIdx.x < 32) boundary.groups[threadIdx.x] = 0;
    if (threadIdx.x == 0) boundary.wholes = boundary.listed = 0;
}

// The first lane with which a warp's counts add up to `left` or more, and in `before` what they add up to before it
__device__ __forceinline__ int lane_of(int count, int left, int &before) {
    const int through = scan_warp<32>(count), lane = __ffs(__ballot_sync(FULL, through >= left)) - 1;
    before = __shfl_sync(FULL, through - count, lane);
    return lane;
}

// The bits of the `left`-th largest fraction, or of a cut that separates exactly `left`; and how many are strictly larger.
__device__ __noinline__ i64 cut_of(const double *fractions, int first, int last, int each, int left, int &larger) {
    i64 below = -1, above = 0x3ff0000000000000ll;  // count(> below) >= left > count(> above): all fractions are < 1
    larger = 0;
    while (above - below > 1) {
        const i64 middle = below + (above - below) / 2;
        int count = 0;
#pragma unroll 1
        for (int t = first; t < first + each; t++) count += __syncthreads_count(t < last && __double_as_longlong(fractions[t]) > middle);
        if (count == left) {
            larger = left;
            return middle;
        }
        if (count > left) {
            below = middle;
        } else {
            above = middle;
            larger = count;
        }
    }
    return above;
}

// Adds one to the budgets of those taken. fractions, their bins and budgets [n] in shared memory, of which this thread owns
// first .. last - 1, at most `each`; the histograms are filled, and left is 0 ... n.
__device__ __forceinline__ void take_largest(const double *fractions, const int *bins, int first, int last, int each, int left, Boundary &boundary,
                                             int *between, int *budget) {
    if (left == 0) return;
    const int lane = threadIdx.x & 31;
    int larger, inside;
    const int group = 31 - lane_of(boundary.groups[31 - lane], left, larger);
    const int bin = group * 32 + 31 - lane_of(boundary.bins[group * 32 + 31 - lane], left - larger, inside), listed = boundary.bins[bin];
    larger += inside;
    if (listed <= THREADS) {
#pragma unroll 1
        for (int t = first; t < last; t++) {
            if (bins[t] > bin) budget[t]++;
            if (bins[t] != bin) continue;
            const int slot = atomicAdd(&boundary.listed, 1);
            boundary.values[slot] = __double_as_longlong(fractions[t]);
            boundary.indices[slot] = t;
        }
        __syncthreads();
        // a warp ranks one of the listed against all
#pragma unroll 1
        for (int e = threadIdx.x >> 5; e < listed; e += THREADS / 32) {
            const i64 mine = boundary.values[e];
            const int its = boundary.indices[e];
            int rank = larger;
#pragma unroll 1
            for (int i = lane; i - lane < listed; i += 32)
                rank += __popc(__ballot_sync(FULL, i < listed && (boundary.values[i] > mine || (boundary.values[i] == mine && boundary.indices[i] < its))));
            if (lane == 0 && rank < left) budget[its]++;
        }
        __syncthreads();
    } else {
        int strictly, total;
        const i64 cut = cut_of(fractions, first, last, each, left, strictly);
        int ties = 0;
#pragma unroll 1
        for (int t = first; t < last; t++) ties += __double_as_longlong(fractions[t]) == cut;
        int before = strictly + scan_block(ties, between, total);
#pragma unroll 1
        for (int t = first; t < last; t++) {
            const i64 bits = __double_as_longlong(fractions[t]);
            budget[t] += bits > cut || (bits == cut && before++ < left);
        }
    }
}

#if INSTRUMENT
// ---- comparisons of the heap selection that the trace counts, of x[0] ... x[n - 1]; one thread ----

template <class X>
__device__ bool goes_first(const X &x, int a, int b) { return x[a] < x[b] || (x[a] == x[b] && a > b); }

template <class X>
__device__ int sift_down(const X &x, int *heap, int size, int root) {
    int compares = 0;
    while (true) {
        int child = 2 * root + 1;
        if (child >= size) return compares;
        if (child + 1 < size) {
            compares++;
            child += goes_first(x, heap[child + 1], heap[child]);
        }
        compares++;
        if (!goes_first(x, heap[child], heap[root])) return compares;
        const int swapped = heap[root];
        heap[root] = heap[child];
        heap[child] = swapped;
        root = child;
    }
}

template <class X>
__device__ int heap_compares(const X &x, int n, int k, int *heap) {
    const int size = min(k, n);
    int compares = 0;
    for (int j = 0; j < size; j++) heap[j] = j;
    for (int root = size / 2 - 1; root >= 0; root--) compares += sift_down(x, heap, size, root);
    for (int j = size; size > 0 && j < n; j++) {
        compares++;
        if (x[j] > x[heap[0]]) {
            heap[0] = j;
            compares += sift_down(x, heap, size, 0);
        }
    }
    return compares;
}
#endif
