// Tiles: what a loop would reach in jumps is transposed in registers, on the way into or out of a small array.
const int TILE = 64;
template <int... I> struct numbers {};
template <int N, int... I> struct count_to : count_to<N - 1, N - 1, I...> {};
template <int... I> struct count_to<0, I...> { typedef numbers<I...> type; };
// A register of P pieces of 16 bytes, each with K elements.
template <class T, int P> struct pieces {
  static const int K = 16 / sizeof(T);
  typedef VECTOR(f32, 4 * P) F;
  typedef VECTOR(typename bits_of_size<sizeof(T)>::type, K * P) V;
  template <int half, int... I> static inline LAMBDA V interleaved(V x, V y, numbers<I...>) {   // the first or second halves of pieces
    return __builtin_shufflevector(x, y, (I / K * K + I % K / 2 + half * (K / 2) + I % 2 * K * P)...);
  }
  template <int stage> static inline LAMBDA void shuffle(V* x) {     // after log2(K) perfect shuffles of K rows they are transposed
    if constexpr (stage > 1) {
      V y[K];
#pragma GCC unroll 16
      for (int i = 0; i < K / 2; i++) {
        y[2 * i] = interleaved<0>(x[i], x[i + K / 2], typename count_to<K * P>::type{});
        y[2 * i + 1] = interleaved<1>(x[i], x[i + K / 2], typename count_to<K * P>::type{});
      }
#pragma GCC unroll 16
      for (int i = 0; i < K; i++) x[i] = y[i];
      shuffle<stage / 2>(x);
    }
  }
};
typedef VECTOR(f32, 4) quad;
INLINE VECTOR(f32, 4) fetch_pieces(tag<pieces<f32, 1>>, const char* p, i64) { return fetch<quad>(p); }
INLINE VECTOR(f32, 8) fetch_pieces(tag<pieces<f32, 2>>, const char* p, i64 stride) {
  return __builtin_shufflevector(fetch<quad>(p), fetch<quad>(p + stride), 0, 1, 2, 3, 4, 5, 6, 7);
}
#if HAVE_AVX512
INLINE vf fetch_pieces(tag<pieces<f32, 4>>, const char* p, i64 stride) {      // without a shuffle
  vf x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p), vf{}, (u16)-1);
  x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + stride), x, 0x00f0);
  x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + 2 * stride), x, 0x0f00);
  return __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + 3 * stride), x, 0xf000);
}
#else
INLINE VECTOR(f32, 16) fetch_pieces(tag<pieces<f32, 4>>, const char* p, i64 stride) {
  auto a = fetch_pieces(tag<pieces<f32, 2>>{}, p, stride), b = fetch_pieces(tag<pieces<f32, 2>>{}, p + 2 * stride, stride);
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif
// to[c * to_stride + r] = from[r * from_stride + c] for as many whole registers as there are rows; the first row that is left
template <int P, class T> INLINE i64 transpose_rows(const T* from, i64 from_stride, T* to, i64 to_stride, i64 r, i64 rows, i64 columns) {
  typedef pieces<T, P> of;
  const i64 K = of::K, step = sizeof(T) * from_stride;
  for (; r + P * K <= rows; r += P * K) {              // rows are brought together as they are loaded
    i64 c = 0;
    for (; c + K <= columns; c += K) {
      typename of::V x[K];
#pragma GCC unroll 16
      for (int i = 0; i < K; i++) x[i] = (typename of::V)fetch_pieces(tag<pieces<f32, P>>{}, (const char*)(from + (r + i) * from_stride + c), K * step);
      of::template shuffle<of::K>(x);
#pragma GCC unroll 16
      for (int i = 0; i < K; i++) put(to + (c + i) * to_stride + r, x[i]);
    }
    for (; c < columns; c++) for (int i = 0; i < P * K; i++) to[c * to_stride + r + i] = from[(r + i) * from_stride + c];
  }
  return r;
}
const int PIECES = sizeof(vu) / 16;
template <class T> static __attribute__((noinline)) void transpose(const T* from, i64 from_stride, T* to, i64 to_stride, i64 rows, i64 columns) {
  i64 r = transpose_rows<PIECES>(from, from_stride, to, to_stride, 0, rows, columns);
  if constexpr (PIECES > 1) r = transpose_rows<1>(from, from_stride, to, to_stride, r, rows, columns);
  for (; r < rows; r++) for (i64 c = 0; c < columns; c++) to[c * to_stride + r] = from[r * from_stride + c];
}
// A whole tile from memory: rows that lie a power of two apart fall into few sets of the cache, so each is read at once (a register
// of short elements is half a line), and what the next tile needs is asked for, which begins `ahead` further.
template <class T> static __attribute__((noinline)) void transpose_tile(const T* from, i64 stride, i64 ahead, T* to) {
  const i64 N = sizeof(vu) / sizeof(T);
  alignas(64) T rows[N * TILE];
  for (i64 r = 0; r < TILE; r += N) {
    for (i64 i = 0; i < N; i++) {
      const T* row = from + (r + i) * stride;
#pragma GCC unroll 4
      for (i64 c = 0; c < TILE; c += N) {
        put(rows + i * TILE + c, fetch<vu>(row + c));
        __builtin_prefetch(row + ahead + c, 0, 2);
      }
    }
    transpose_rows<PIECES>((const T*)rows, TILE, to + r, TILE, 0, N, TILE);
  }
}
// Asks for a row of a later tile: rows of a tile are too short for the processor to see a stream in them.
template <int written, class T> INLINE void ask_for(const T* p) {
  for (i64 c = 0; c < TILE; c += 64 / sizeof(T)) __builtin_prefetch(p + c, written, 2);
}
template <class T> struct tile {                            // data[c * TILE + r] is the element of row r and column c
  alignas(64) T data[TILE * TILE];
  LAMBDA tile() {}
  LAMBDA void load(const T* p, i64 stride, i64 rows, i64 columns, i64 step) {    // the next tile is TILE steps further
    if (rows == TILE && columns == TILE) return transpose_tile(p, stride, TILE * step, data);
    transpose(p, stride, data, TILE, rows, columns);
  }
  LAMBDA void store(T* p, i64 stride, i64 rows, i64 columns) const { transpose((const T*)data, TILE, p, stride, columns, rows); }
};
