// Philox4x32-10: the word c % 4 of block c / 4 gives element c.
INLINE void multiply(u32 a, u32 m, u32& high, u32& low) { u64 p = (u64)a * m; high = (u32)(p >> 32); low = (u32)p; }
INLINE void multiply(vu a, u32 m, vu& high, vu& low) {
  typedef VECTOR(u64, LANES / 2) wide;
  wide even = ((wide)a & 0xffffffffull) * m, odd = ((wide)a >> 32) * m;
  low = a * m;
  high = (vu)((even >> 32) | (odd & 0xffffffff00000000ull));
}
template <class U> INLINE void philox(U c0, U c1, u32 k0, u32 k1, U word[4], u32 stream = 0, int rounds = 10) {
  U c2 = U{} + stream, c3{};
  for (int i = 0; i < rounds; i++) {
    U h0, l0, h1, l1;
    multiply(c0, 0xD2511F53u, h0, l0); multiply(c2, 0xCD9E8D57u, h1, l1);
    c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  word[0] = c0; word[1] = c1; word[2] = c2; word[3] = c3;
}
INLINE vf unit_interval(vu word) { return CONVERT((vi)(word >> 8), vf) * 0x1p-24f; }
INLINE f32 uniform_of(i64 seed, i64 counter) {
  u64 block = (u64)(counter >> 2); u32 word[4];
  philox((u32)block, (u32)(block >> 32), (u32)seed, (u32)((u64)seed >> 32), word);
  return (f32)(i32)(word[counter & 3] >> 8) * 0x1p-24f;
}
INLINE f32 uniform16_of(i64 seed, i64 counter) {   // two elements share a word of the second stream, of 7 rounds
  u64 block = (u64)(counter >> 3); u32 word[4];
  philox((u32)block, (u32)(block >> 32), (u32)seed, (u32)((u64)seed >> 32), word, 1, 7);
  u32 own = word[(counter >> 1) & 3];
  return (f32)(i32)((counter & 1 ? own >> 16 | own << 16 : own) >> 8) * 0x1p-24f;
}
INLINE vf uniform_of(i64 seed, vqq counter) {
  vqq block = {counter.a >> 2, counter.b >> 2}, top = {block.a >> 32, block.b >> 32};
  vu word[4];
  philox((vu)narrow(block), (vu)narrow(top), (u32)seed, (u32)((u64)seed >> 32), word);
  vi lane = narrow(counter) & 3;
  return unit_interval(lane < 2 ? (lane == 0 ? word[0] : word[1]) : (lane == 2 ? word[2] : word[3]));
}
template <class H> INLINE auto uniform_of(i64 seed, two<two<H>> c) { return pair(uniform_of(seed, c.a), uniform_of(seed, c.b)); }
template <int W> INLINE vec<f32, W> uniform_lanes(vec<i64, W> seed, vec<i64, W> counter) {
  lane_array<i64, W> s(seed), c(counter);
  return gather<W, f32>(full{}, [&](i64 k) { return uniform_of(s[k], c[k]); });
}
template <int W> INLINE vec<f32, W> uniform16_lanes(vec<i64, W> seed, vec<i64, W> counter) {
  lane_array<i64, W> s(seed), c(counter);
  return gather<W, f32>(full{}, [&](i64 k) { return uniform16_of(s[k], c[k]); });
}
#if LANES == 16
#define LOW_INTERLEAVED 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_INTERLEAVED 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW_INTERLEAVED 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_INTERLEAVED 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_INTERLEAVED 0, 4, 1, 5
#define HIGH_INTERLEAVED 2, 6, 3, 7
#endif
INLINE two<vu> interleave(vu x, vu y) { return {__builtin_shufflevector(x, y, LOW_INTERLEAVED), __builtin_shufflevector(x, y, HIGH_INTERLEAVED)}; }
INLINE vf uniform_run(i64 seed, i64 first, vf) { return uniform_of(seed, iota<LANES>(first, 1)); }
INLINE two<vf> uniform_run(i64 seed, i64 first, two<vf>) { return uniform_of(seed, iota<2 * LANES>(first, 1)); }
INLINE two<two<vf>> uniform_run(i64 seed, i64 first, two<two<vf>>) {   // one block per four consecutive elements
  if (first & 3) return uniform_of(seed, iota<4 * LANES>(first, 1));
  vqq block = iota<LANES>(first >> 2, 1);
  vqq top = {block.a >> 32, block.b >> 32};
  vu word[4];
  philox((vu)narrow(block), (vu)narrow(top), (u32)seed, (u32)((u64)seed >> 32), word);
  two<vu> even = interleave(word[0], word[2]), odd = interleave(word[1], word[3]);
  two<vu> low = interleave(even.a, odd.a), high = interleave(even.b, odd.b);
  return {{unit_interval(low.a), unit_interval(low.b)}, {unit_interval(high.a), unit_interval(high.b)}};
}
