// Matrix product c = transpose(b) * a: c[n][m] = sum over k of a[k][m] * b[k][n]; all row-major.
//
// a: (size_k, size_m); b: (size_k, size_n); c: (size_n, size_m). A block of MDIMC * NDIMC threads computes
// MWG * NWG elements, KWG steps of k at a time; a thread holds vectors of VWM and VWN elements, MDIMC and NDIMC
// vectors apart. SA and SB bring the blocks of a and b into shared memory first.

#define THREADS (MDIMC * NDIMC)
#define VECTORS_M (MWG / (MDIMC * VWM))
#define VECTORS_N (NWG / (NDIMC * VWN))

typedef struct __align__(4 * VWM) { float lane[VWM]; } VectorM;
typedef struct __align__(4 * VWN) { float lane[VWN]; } VectorN;

KERNEL void __launch_bounds__(THREADS)
gemm(GLOBAL float* c, GLOBAL const float* a, GLOBAL const float* b) {
    GLOBAL const VectorM* columns_a = (GLOBAL const VectorM*)a + blockIdx.x * (MWG / VWM);
    GLOBAL const VectorN* columns_b = (GLOBAL const VectorN*)b + blockIdx.y * (NWG / VWN);
    const int thread = threadIdx.y * MDIMC + threadIdx.x;
    float sum[VECTORS_N][VWN][VECTORS_M][VWM] = {};

#if SA
    __shared__ VectorM shared_a[KWG][MWG / VWM];
#define A(k, m) shared_a[k][m]
#else
#define A(k, m) columns_a[(start + (k)) * (size_m / VWM) + (m)]
#endif
#if SB
    __shared__ VectorN shared_b[KWG][NWG / VWN];
#define B(k, n) shared_b[k][n]
#else
#define B(k, n) columns_b[(start + (k)) * (size_n / VWN) + (n)]
#endif

#pragma unroll 1
    for (int start = 0; start < size_k; start += KWG) {
#if SA
        for (int i = thread; i < KWG * (MWG / VWM); i += THREADS) {
            const int k = i / (MWG / VWM), m = i % (MWG / VWM);
            shared_a[k][m] = columns_a[(start + k) * (size_m / VWM) + m];
        }
#endif
#if SB
        for (int i = thread; i < KWG * (NWG / VWN); i += THREADS) {
            const int k = i / (NWG / VWN), n = i % (NWG / VWN);
            shared_b[k][n] = columns_b[(start + k) * (size_n / VWN) + n];
        }
#endif
#if SA || SB
        __syncthreads();
#endif
        UNROLL(KWI)
        for (int k = 0; k < KWG; ++k) {
            VectorM of_a[VECTORS_M];
            VectorN of_b[VECTORS_N];
#pragma unroll
            for (int m = 0; m < VECTORS_M; ++m) {
                of_a[m] = A(k, threadIdx.x + m * MDIMC);
            }
#pragma unroll
            for (int n = 0; n < VECTORS_N; ++n) {
                of_b[n] = B(k, threadIdx.y + n * NDIMC);
            }
#pragma unroll
            for (int n = 0; n < VECTORS_N; ++n) {
#pragma unroll
                for (int w = 0; w < VWN; ++w) {
#pragma unroll
                    for (int m = 0; m < VECTORS_M; ++m) {
#pragma unroll
                        for (int v = 0; v < VWM; ++v) {
                            sum[n][w][m][v] += of_b[n].lane[w] * of_a[m].lane[v];
                        }
                    }
                }
            }
        }
#if SA || SB
        __syncthreads();
#endif
    }

#pragma unroll
    for (int n = 0; n < VECTORS_N; ++n) {
#pragma unroll
        for (int w = 0; w < VWN; ++w) {
            const int row = blockIdx.y * NWG + (threadIdx.y + n * NDIMC) * VWN + w;
#pragma unroll
            for (int m = 0; m < VECTORS_M; ++m) {
                VectorM result;
#pragma unroll
                for (int v = 0; v < VWM; ++v) {
                    result.lane[v] = sum[n][w][m][v];
                }
                const int column = blockIdx.x * (MWG / VWM) + threadIdx.x + m * MDIMC;
                ((GLOBAL VectorM*)c)[row * (size_m / VWM) + column] = result;
            }
        }
    }
}
