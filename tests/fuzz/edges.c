/* Counts the edges that instrumented code takes: gcc -fsanitize-coverage=trace-pc,trace-cmp calls these functions. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EDGES (1 << 16)

static uint8_t hits[EDGES];  /* in this input */
static uint8_t seen[EDGES];  /* in all inputs: a bit for each range of counts */
static uintptr_t last;

static void count(uintptr_t place) {
    uint8_t *hit = &hits[(place ^ (place >> 16)) & (EDGES - 1)];
    if (*hit != UINT8_MAX)
        ++*hit;
}

void __sanitizer_cov_trace_pc(void) {
    uintptr_t place = (uintptr_t)__builtin_return_address(0);
    count(place ^ last);
    last = place >> 1;
}

/* How many bits of two compared values are equal tells how near an input is to passing the comparison. */
static void compared(uint64_t a, uint64_t b, uintptr_t place) {
    if (a != b)
        count(place * 31 + (uintptr_t)__builtin_popcountll(a ^ b));
}

#define COMPARISON(name, type)                                                \
    void name(type a, type b) {                                               \
        compared((uint64_t)a, (uint64_t)b, (uintptr_t)__builtin_return_address(0)); \
    }
COMPARISON(__sanitizer_cov_trace_cmp1, uint8_t)
COMPARISON(__sanitizer_cov_trace_cmp2, uint16_t)
COMPARISON(__sanitizer_cov_trace_cmp4, uint32_t)
COMPARISON(__sanitizer_cov_trace_cmp8, uint64_t)
COMPARISON(__sanitizer_cov_trace_const_cmp1, uint8_t)
COMPARISON(__sanitizer_cov_trace_const_cmp2, uint16_t)
COMPARISON(__sanitizer_cov_trace_const_cmp4, uint32_t)
COMPARISON(__sanitizer_cov_trace_const_cmp8, uint64_t)

void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    for (uint64_t n = 0; n < cases[0]; n++)
        compared(value, cases[2 + n], (uintptr_t)__builtin_return_address(0) + n);
}

void fuzz_begin(void) {
    memset(hits, 0, sizeof hits);
    last = 0;
}

/* How many edges this input took that none did before, or took a number of times that is new. */
int fuzz_news(void) {
    int news = 0;
    for (size_t n = 0; n < EDGES; n++) {
        if (!hits[n])
            continue;
        uint8_t range = hits[n] < 4 ? 1 << (hits[n] - 1) : hits[n] < 8 ? 8 : hits[n] < 32 ? 16 : hits[n] < 128 ? 32 : 64;
        if (!(seen[n] & range)) {
            seen[n] |= range;
            news++;
        }
    }
    return news;
}

int fuzz_edges(void) {
    int edges = 0;
    for (size_t n = 0; n < EDGES; n++)
        edges += seen[n] != 0;
    return edges;
}

/* Comparisons of floating-point numbers are not counted. */
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }
