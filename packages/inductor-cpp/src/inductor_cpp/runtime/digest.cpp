// A digest of the bytes of some tensors, to see whether they changed. Every lane keeps a chain of 32-bit steps, each of which is a
// bijection of state and word, so that one changed word always shows; the rotation keeps changes of sign bits from cancelling.
typedef VECTOR(u32, 16) word16;
static const int CHAINS = 4, PARTS = 64;
static const i64 STEP = CHAINS * (i64)sizeof(word16), LARGE = 1 << 21;

static inline u64 mix(u64 state, u64 word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15ull;
  return (state << 29) | (state >> 35);
}
static u64 digest_part(const char* p, i64 bytes) {
  word16 chain[CHAINS] = {word16{} + 1u, word16{} + 2u, word16{} + 3u, word16{} + 4u};
  i64 i = 0;
  for (; i + STEP <= bytes; i += STEP) {
#pragma GCC unroll 4
    for (int j = 0; j < CHAINS; j++) {
      word16 x = chain[j] ^ fetch<word16>(p + i + j * (i64)sizeof(word16));
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
    parallel(PARTS, bytes, [&](i64 first, i64 last, bool) {
      for (i64 k = first; k < last; k++) {
        i64 from = index_min(k * each, bytes), to = index_min(from + each, bytes);
        part[k] = digest_part(p + from, to - from);
      }
      return 0;
    });
    for (int k = 0; k < PARTS; k++) state = mix(state, part[k]);
  }
  return state;
}
