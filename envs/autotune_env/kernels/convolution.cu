// Two-dimensional convolution: output[y][x] = sum over i, j of filter[i][j] * image[y + i][x + j].
//
// image: (height + filter_height - 1, width + filter_width - 1); output: (height, width); row-major.
// A thread computes tile_size_y * tile_size_x outputs, block_size apart, so that a warp reads neighbours.

#define TILE_WIDTH (block_size_x * tile_size_x)
#define TILE_HEIGHT (block_size_y * tile_size_y)
#define IMAGE_WIDTH (width + filter_width - 1)
#define SPAN_X (TILE_WIDTH + filter_width - 1)
#define SPAN_Y (TILE_HEIGHT + filter_height - 1)

// Padded, consecutive threads meet consecutive banks even where a warp covers several rows of a block.
#define PADDING (use_padding * ((block_size_x + 31 * SPAN_X) % 32))

#if read_only
#define LOAD(address) __ldg(address)
#else
#define LOAD(address) (*(address))
#endif

CONSTANT_ARRAY(float, filter, filter_height * filter_width)

KERNEL void convolution(GLOBAL float* output, GLOBAL const float* image CONSTANT_ARGUMENT(float, filter)) {
    const int left = blockIdx.x * TILE_WIDTH;
    const int top = blockIdx.y * TILE_HEIGHT;
    float sum[tile_size_y][tile_size_x] = {};

#if use_shared
    __shared__ float tile[SPAN_Y][SPAN_X + PADDING];
    for (int y = threadIdx.y; y < SPAN_Y; y += block_size_y) {
        for (int x = threadIdx.x; x < SPAN_X; x += block_size_x) {
            if (top + y < height + filter_height - 1 && left + x < IMAGE_WIDTH) {
                tile[y][x] = LOAD(image + (top + y) * IMAGE_WIDTH + left + x);
            }
        }
    }
    __syncthreads();
#define PIXEL(ty, tx, i, j) tile[threadIdx.y + (ty) * block_size_y + (i)][threadIdx.x + (tx) * block_size_x + (j)]
#else
    // Threads past the edge read what the last ones read, and write nothing.
    int row[tile_size_y], column[tile_size_x];
#pragma unroll
    for (int ty = 0; ty < tile_size_y; ++ty) {
        row[ty] = min(top + (int)threadIdx.y + ty * block_size_y, height - 1);
    }
#pragma unroll
    for (int tx = 0; tx < tile_size_x; ++tx) {
        column[tx] = min(left + (int)threadIdx.x + tx * block_size_x, width - 1);
    }
#define PIXEL(ty, tx, i, j) LOAD(image + (row[ty] + (i)) * IMAGE_WIDTH + column[tx] + (j))
#endif

#pragma unroll 1
    for (int i = 0; i < filter_height; ++i) {
#pragma unroll
        for (int j = 0; j < filter_width; ++j) {
            const float weight = filter[i * filter_width + j];
#pragma unroll
            for (int ty = 0; ty < tile_size_y; ++ty) {
#pragma unroll
                for (int tx = 0; tx < tile_size_x; ++tx) {
                    sum[ty][tx] += weight * PIXEL(ty, tx, i, j);
                }
            }
        }
    }

#pragma unroll
    for (int ty = 0; ty < tile_size_y; ++ty) {
#pragma unroll
        for (int tx = 0; tx < tile_size_x; ++tx) {
            const int y = top + threadIdx.y + ty * block_size_y;
            const int x = left + threadIdx.x + tx * block_size_x;
            if (y < height && x < width) {
                output[y * width + x] = sum[ty][tx];
            }
        }
    }
}
