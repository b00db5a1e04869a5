// A digest of the bytes of some tensors, to see whether they changed. Every lane keeps a chain of 32-bit steps, each of which is a
// bijection of state and word, so that one changed word always shows; the rotation keeps changes of sign bits from cancelling.
typedef unsigned u32; typedef unsigned long long u64; typedef long long i64;
typedef u32 words __attribute__((vector_size(64), aligned(1), may_alias));
typedef u32 lanes __attribute__((vector_size(64)));
static const int CHAINS = 4, PARTS = 64;
static const i64 STEP = CHAINS * (i64)sizeof(lanes), LARGE = 1 << 21;

static inline u64 mix(u64 state, u64 word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15ull;
  return (state << 29) | (state >> 35);
}
static u64 digest_part(const char* p, i64 bytes) {
  lanes chain[CHAINS] = {lanes{} + 1u, lanes{} + 2u, lanes{} + 3u, lanes{} + 4u};
  i64 i = 0;
  for (; i + STEP <= bytes; i += STEP) {
#pragma GCC unroll 4
    for (int j = 0; j < CHAINS; j++) {
      lanes x = chain[j] ^ *(const words*)(p + i + j * (i64)sizeof(lanes));
      chain[j] = ((x << 13) | (x >> 19)) * 0x9E3779B1u;
    }
  }
  u64 state = (u64)bytes;
  for (int j = 0; j < CHAINS; j++) for (int k = 0; k < 16; k++) state = mix(state, chain[j][k]);
  for (; i < bytes; i++) state = mix(state, (unsigned char)p[i]);
  return state;
}
extern "C" u64 strata_digest(int count, const char* const* starts, const i64* sizes) {
  u64 state = 0;
  for (int t = 0; t < count; t++) {
    const char* p = starts[t]; i64 bytes = sizes[t];
    if (bytes < LARGE) { state = mix(state, digest_part(p, bytes)); continue; }
    u64 part[PARTS]; i64 each = (bytes / PARTS + STEP) & -STEP;
#pragma omp parallel for
    for (int k = 0; k < PARTS; k++) {
      i64 from = k * each < bytes ? k * each : bytes, to = from + each < bytes ? from + each : bytes;
      part[k] = digest_part(p + from, to - from);
    }
    for (int k = 0; k < PARTS; k++) state = mix(state, part[k]);
  }
  return state;
}
