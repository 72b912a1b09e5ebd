// Two-dimensional convolution: output[y][x] = sum over i, j of filter[i][j] * image[y + i][x + j].
//
// image: (height + filter_height - 1, width + filter_width - 1); output: (height, width); row-major.
// Blocks of block_y * block_x outputs go to threads; tile_y * tile_x sums are kept in registers.

#define IMAGE_WIDTH (width + filter_width - 1)

// A pragma does not expand macros; this does.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(GCC unroll count)

extern "C" double omp_get_wtime(void);

extern "C" float convolution(float* output, const float* image, const float* filter) {
    const double start = omp_get_wtime();
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int top = 0; top < height; top += block_y) {
        for (int left = 0; left < width; left += block_x) {
            for (int y = top; y < top + block_y; y += tile_y) {
                for (int x = left; x < left + block_x; x += tile_x) {
                    float sum[tile_y][tile_x] = {};
                    for (int i = 0; i < filter_height; ++i) {
                        UNROLL(unroll_filter)
                        for (int j = 0; j < filter_width; ++j) {
                            const float weight = filter[i * filter_width + j];
                            for (int ty = 0; ty < tile_y; ++ty) {
                                const float* pixels = image + (y + ty + i) * IMAGE_WIDTH + x + j;
#pragma omp simd
                                for (int tx = 0; tx < tile_x; ++tx) {
                                    sum[ty][tx] += weight * pixels[tx];
                                }
                            }
                        }
                    }
                    for (int ty = 0; ty < tile_y; ++ty) {
                        for (int tx = 0; tx < tile_x; ++tx) {
                            output[(y + ty) * width + x + tx] = sum[ty][tx];
                        }
                    }
                }
            }
        }
    }
    return (float)((omp_get_wtime() - start) * 1e3);
}
