// Brute-force incoherent dedispersion: output[d][t] = sum over c of samples[c][t + shift(c, d)].
//
// samples: (channels, instants + max_shift) of 8 bits; delay: (channels,), by how many samples a channel lags behind the
// highest frequency for each step of the dispersion measure; shift(c, d) = (int)(d * delay[c]), in single precision.
// output: (measures, instants). A thread sums tile_size_y measures of tile_size_x instants each: neighbours, or with a
// tile_stride, a block apart.

#define PITCH (instants + max_shift)
#define TIME(tx) (block_size_x * tile_size_x * (int)blockIdx.x \
    + (tile_stride_x ? (int)threadIdx.x + (tx) * block_size_x : (int)threadIdx.x * tile_size_x + (tx)))
#define MEASURE(ty) (block_size_y * tile_size_y * (int)blockIdx.y \
    + (tile_stride_y ? (int)threadIdx.y + (ty) * block_size_y : (int)threadIdx.y * tile_size_y + (ty)))

CONSTANT_ARRAY(float, delay, channels)

KERNEL void dedispersion(GLOBAL float* output, GLOBAL const unsigned char* samples CONSTANT_ARGUMENT(float, delay)) {
    float sum[tile_size_y][tile_size_x] = {};
    // Threads past the edge read what the last ones read, and write nothing.
    int time[tile_size_x];
    float measure[tile_size_y];
#pragma unroll
    for (int tx = 0; tx < tile_size_x; ++tx) {
        time[tx] = min(TIME(tx), instants - 1);
    }
#pragma unroll
    for (int ty = 0; ty < tile_size_y; ++ty) {
        measure[ty] = (float)min(MEASURE(ty), measures - 1);
    }

    UNROLL(loop_unroll_factor_channel)
    for (int channel = 0; channel < channels; ++channel) {
        GLOBAL const unsigned char* row = samples + channel * PITCH;
        const float lag = delay[channel];
#pragma unroll
        for (int ty = 0; ty < tile_size_y; ++ty) {
            GLOBAL const unsigned char* shifted = row + (int)(measure[ty] * lag);
#pragma unroll
            for (int tx = 0; tx < tile_size_x; ++tx) {
                sum[ty][tx] += (float)shifted[time[tx]];
            }
        }
    }

#pragma unroll
    for (int ty = 0; ty < tile_size_y; ++ty) {
#pragma unroll
        for (int tx = 0; tx < tile_size_x; ++tx) {
            if (MEASURE(ty) < measures && TIME(tx) < instants) {
                output[MEASURE(ty) * instants + TIME(tx)] = sum[ty][tx];
            }
        }
    }
}
