// Heat on a chip: temporal_tiling_factor explicit steps of a five-point stencil with a source term.
//
// temperature, power, output: (height, width), row-major. A cell at the edge is its own neighbour outside.
// A thread takes a tile with a halo as deep as there are steps into a buffer and advances it there; the part that is
// right shrinks by one cell on each side with every step.

#define STEPS temporal_tiling_factor
#define SPAN_X (tile_x + 2 * STEPS)
#define SPAN_Y (tile_y + 2 * STEPS)
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))

// A pragma does not expand macros; this does.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(GCC unroll count)

extern "C" double omp_get_wtime(void);

// One tile, whose halo begins at row `top` and column `left` of the grid.
static void advance(float* output, const float* temperature, const float* power, int top, int left) {
    float tile[2][SPAN_Y][SPAN_X];
    // The rows and columns of the buffer that lie in the grid.
    const int first_row = MOST(0, -top), last_row = LEAST(SPAN_Y, height - top) - 1;
    const int first = MOST(0, -left), last = LEAST(SPAN_X, width - left) - 1;
#if local_power
    float heat[SPAN_Y][SPAN_X];
#endif
    for (int y = first_row; y <= last_row; ++y) {
        for (int x = first; x <= last; ++x) {
            tile[0][y][x] = temperature[(top + y) * width + left + x];
#if local_power
            heat[y][x] = power[(top + y) * width + left + x];
#endif
        }
    }
    UNROLL(loop_unroll_factor_t)
    for (int step = 1; step <= STEPS; ++step) {
        float (*now)[SPAN_X] = tile[(step - 1) % 2];
        const int begin_row = MOST(first_row, step), end_row = LEAST(last_row, SPAN_Y - 1 - step);
        const int begin = MOST(first, step), end = LEAST(last, SPAN_X - 1 - step);
        for (int y = begin_row; y <= end_row; ++y) {
            const float* here = now[y];
            const float* north = now[y > first_row || top + y > 0 ? y - 1 : y];
            const float* south = now[y < last_row || top + y < height - 1 ? y + 1 : y];
            // Outside the grid stands what stands at its edge.
            if (left + begin == 0) {
                now[y][begin - 1] = now[y][begin];
            }
            if (left + end == width - 1) {
                now[y][end + 1] = now[y][end];
            }
#if local_power
            const float* warmth = heat[y];
#else
            const float* warmth = power + (top + y) * width + left;
#endif
            float* next = step == STEPS ? output + (top + y) * width + left : tile[step % 2][y];
#pragma GCC ivdep
            for (int x = begin; x <= end; ++x) {
                next[x] = here[x] + 0.125f * (north[x] + south[x] - 2.0f * here[x])
                    + 0.0625f * (here[x - 1] + here[x + 1] - 2.0f * here[x]) + 0.5f * warmth[x]
                    + 0.03125f * (300.0f - here[x]);
            }
        }
    }
}

extern "C" float hotspot(float* output, const float* temperature, const float* power) {
    const double start = omp_get_wtime();
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int top = 0; top < height; top += tile_y) {
        for (int left = 0; left < width; left += tile_x) {
            advance(output, temperature, power, top - STEPS, left - STEPS);
        }
    }
    return (float)((omp_get_wtime() - start) * 1e3);
}
