// Heat on a chip: temporal_tiling_factor explicit steps of a five-point stencil with a source term.
//
// temperature, power, output: (height, width), row-major. A cell at the edge is its own neighbour outside.
// A block loads its tile with a halo as deep as there are steps, and advances it in shared memory; the part that
// is right shrinks by one cell on each side with every step.

#define STEPS temporal_tiling_factor
#define TILE_WIDTH (block_size_x * tile_size_x)
#define TILE_HEIGHT (block_size_y * tile_size_y)
#define SPAN_X (TILE_WIDTH + 2 * STEPS)
#define SPAN_Y (TILE_HEIGHT + 2 * STEPS)

KERNEL void __launch_bounds__(block_size_x * block_size_y)
hotspot(GLOBAL float* output, GLOBAL const float* temperature, GLOBAL const float* power) {
    __shared__ float tile[2][SPAN_Y][SPAN_X];
    const int left = (int)blockIdx.x * TILE_WIDTH - STEPS;
    const int top = (int)blockIdx.y * TILE_HEIGHT - STEPS;

#if sh_power
    __shared__ float heat[SPAN_Y][SPAN_X];
#define HEAT(y, x) heat[y][x]
#else
#define HEAT(y, x) power[(top + (y)) * width + left + (x)]
#endif

    for (int y = threadIdx.y; y < SPAN_Y; y += block_size_y) {
        for (int x = threadIdx.x; x < SPAN_X; x += block_size_x) {
            if (top + y >= 0 && top + y < height && left + x >= 0 && left + x < width) {
                tile[0][y][x] = temperature[(top + y) * width + left + x];
#if sh_power
                heat[y][x] = power[(top + y) * width + left + x];
#endif
            }
        }
    }
    __syncthreads();

    UNROLL(loop_unroll_factor_t)
    for (int step = 1; step <= STEPS; ++step) {
        SHARED const float (*now)[SPAN_X] = tile[(step - 1) % 2];
        for (int y = threadIdx.y + step; y < SPAN_Y - step; y += block_size_y) {
            for (int x = threadIdx.x + step; x < SPAN_X - step; x += block_size_x) {
                const int row = top + y;
                const int column = left + x;
                if (row >= 0 && row < height && column >= 0 && column < width) {
                    const float here = now[y][x];
                    const float north = row > 0 ? now[y - 1][x] : here;
                    const float south = row < height - 1 ? now[y + 1][x] : here;
                    const float west = column > 0 ? now[y][x - 1] : here;
                    const float east = column < width - 1 ? now[y][x + 1] : here;
                    const float next = here + 0.125f * (north + south - 2.0f * here)
                        + 0.0625f * (west + east - 2.0f * here) + 0.5f * HEAT(y, x) + 0.03125f * (300.0f - here);
                    if (step == STEPS) {
                        output[row * width + column] = next;
                    } else {
                        tile[step % 2][y][x] = next;
                    }
                }
            }
        }
        __syncthreads();
    }
}
