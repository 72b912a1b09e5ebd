// Matrix product c = transpose(b) * a: c[n][m] = sum over k of a[k][m] * b[k][n]; all row-major.
//
// a: (size_k, size_m); b: (size_k, size_n); c: (size_n, size_m). Blocks of block_n * block_m outputs go to threads;
// tile_n * tile_m sums are kept in registers over block_k steps. pack_a copies the block of a first, so that its rows
// follow each other in memory.

// A pragma does not expand macros; this does.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(GCC unroll count)

extern "C" double omp_get_wtime(void);

static void block(float* c, const float* a, const float* b, int n0, int m0) {
    for (int k0 = 0; k0 < size_k; k0 += block_k) {
#if pack_a
        float packed[block_k][block_m];
        for (int k = 0; k < block_k; ++k) {
            for (int m = 0; m < block_m; ++m) {
                packed[k][m] = a[(k0 + k) * size_m + m0 + m];
            }
        }
#define ROW(k, m) (packed[k] + (m) - m0)
#else
#define ROW(k, m) (a + (k0 + (k)) * size_m + (m))
#endif
        for (int n = n0; n < n0 + block_n; n += tile_n) {
            for (int m = m0; m < m0 + block_m; m += tile_m) {
                float sum[tile_n][tile_m] = {};
                UNROLL(unroll_k)
                for (int k = 0; k < block_k; ++k) {
                    const float* of_a = ROW(k, m);
                    const float* of_b = b + (k0 + k) * size_n + n;
                    for (int j = 0; j < tile_n; ++j) {
#pragma omp simd
                        for (int i = 0; i < tile_m; ++i) {
                            sum[j][i] += of_b[j] * of_a[i];
                        }
                    }
                }
                for (int j = 0; j < tile_n; ++j) {
                    float* row = c + (n + j) * size_m + m;
                    for (int i = 0; i < tile_m; ++i) {
                        row[i] = k0 == 0 ? sum[j][i] : row[i] + sum[j][i];
                    }
                }
            }
        }
    }
}

extern "C" float gemm(float* c, const float* a, const float* b) {
    const double start = omp_get_wtime();
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int n = 0; n < size_n; n += block_n) {
        for (int m = 0; m < size_m; m += block_m) {
            block(c, a, b, n, m);
        }
    }
    return (float)((omp_get_wtime() - start) * 1e3);
}
