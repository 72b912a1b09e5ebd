// Brute-force incoherent dedispersion: output[d][t] = sum over c of samples[c][t + shift(c, d)].
//
// samples: (channels, instants + max_shift) of 8 bits; delay: (channels,), by how many samples a channel lags behind the
// highest frequency for each step of the dispersion measure; shift(c, d) = (int)(d * delay[c]), in single precision.
// output: (measures, instants). A thread sums tile_measures * tile_times outputs, tile_channels channels at a time.

#define PITCH (instants + max_shift)

extern "C" double omp_get_wtime(void);

static void block(float* output, const unsigned char* samples, const float* delay, int measure, int time) {
    float sum[tile_measures][tile_times] = {};
    for (int channel = 0; channel < channels; channel += tile_channels) {
        for (int d = 0; d < tile_measures; ++d) {
            const unsigned char* shifted[tile_channels];
            for (int c = 0; c < tile_channels; ++c) {
                shifted[c] = samples + (channel + c) * PITCH + time + (int)((float)(measure + d) * delay[channel + c]);
            }
            for (int t = 0; t < tile_times; ++t) {
                float total = sum[d][t];
                for (int c = 0; c < tile_channels; ++c) {
                    total += (float)shifted[c][t];
                }
                sum[d][t] = total;
            }
        }
    }
    for (int d = 0; d < tile_measures; ++d) {
        for (int t = 0; t < tile_times; ++t) {
            output[(measure + d) * instants + time + t] = sum[d][t];
        }
    }
}

extern "C" float dedispersion(float* output, const unsigned char* samples, const float* delay) {
    const double start = omp_get_wtime();
#if times_outer
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int time = 0; time < instants; time += tile_times) {
        for (int measure = 0; measure < measures; measure += tile_measures) {
#else
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int measure = 0; measure < measures; measure += tile_measures) {
        for (int time = 0; time < instants; time += tile_times) {
#endif
            block(output, samples, delay, measure, time);
        }
    }
    return (float)((omp_get_wtime() - start) * 1e3);
}
