// Tiles: what a loop would reach in jumps is transposed in registers, on the way into or out of a small array.
const int TILE = 64;
template <class V, int stage> struct shuffle_network {      // after log2(LANES) perfect shuffles of rows the block is transposed
  static inline LAMBDA void run(V* x) {
    V y[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES / 2; i++) {
      y[2 * i] = __builtin_shufflevector(x[i], x[i + LANES / 2], LOW_INTERLEAVED);
      y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + LANES / 2], HIGH_INTERLEAVED);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) x[i] = y[i];
    shuffle_network<V, stage / 2>::run(x);
  }
};
template <class V> struct shuffle_network<V, 1> { static inline LAMBDA void run(V*) {} };
template <int size> struct tile_register { typedef vi type; };
template <> struct tile_register<2> { typedef vs type; };
// to[c * to_stride + r] = from[r * from_stride + c]
template <class T> static __attribute__((noinline)) void transpose(const T* from, i64 from_stride, T* to, i64 to_stride, i64 rows, i64 columns) {
  i64 r = 0;
  if constexpr (sizeof(T) == 4 || sizeof(T) == 2) {
    typedef typename tile_register<sizeof(T)>::type V;
    for (; r + LANES <= rows; r += LANES) {
      i64 c = 0;
      for (; c + LANES <= columns; c += LANES) {
        V x[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) x[i] = fetch<V>(from + (r + i) * from_stride + c);
        shuffle_network<V, LANES>::run(x);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) put(to + (c + i) * to_stride + r, x[i]);
      }
      for (; c < columns; c++) for (int i = 0; i < LANES; i++) to[c * to_stride + r + i] = from[(r + i) * from_stride + c];
    }
  }
  for (; r < rows; r++) for (i64 c = 0; c < columns; c++) to[c * to_stride + r] = from[r * from_stride + c];
}
#if HAVE_AVX512
// Sixteen rows and four columns of four-byte elements: rows are brought together as they are loaded, which takes no shuffles.
INLINE vf four_rows(const f32* p, i64 stride) {             // four elements of each of the rows 0, 4, 8 and 12
  typedef VECTOR(f32, 4) quad;
  vf x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p), vf{}, (u16)-1);
  x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + 4 * stride), x, 0x00f0);
  x = __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + 8 * stride), x, 0x0f00);
  return __builtin_ia32_broadcastf32x4_512(fetch<quad>(p + 12 * stride), x, 0xf000);
}
#define EACH_QUAD(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12)
INLINE void transpose_quads(const f32* from, i64 from_stride, f32* to, i64 to_stride) {
  vf x[4];
  for (int i = 0; i < 4; i++) x[i] = four_rows(from + i * from_stride, from_stride);
  vf a = EACH_QUAD(x[0], x[1], 0, 16, 1, 17), b = EACH_QUAD(x[0], x[1], 2, 18, 3, 19);
  vf c = EACH_QUAD(x[2], x[3], 0, 16, 1, 17), d = EACH_QUAD(x[2], x[3], 2, 18, 3, 19);
  put(to, EACH_QUAD(a, c, 0, 1, 16, 17)); put(to + to_stride, EACH_QUAD(a, c, 2, 3, 18, 19));
  put(to + 2 * to_stride, EACH_QUAD(b, d, 0, 1, 16, 17)); put(to + 3 * to_stride, EACH_QUAD(b, d, 2, 3, 18, 19));
}
#endif
// A whole tile from memory: rows that lie a power of two apart fall into few sets of the cache, so each is read at once (a register
// of short elements is half a line), and what the next tile needs is asked for, which begins `ahead` further.
template <class T> static __attribute__((noinline)) void transpose_tile(const T* from, i64 stride, i64 ahead, T* to) {
  alignas(64) T rows[LANES * TILE];
  for (i64 r = 0; r < TILE; r += LANES) {
    for (i64 i = 0; i < LANES; i++) {
      const T* row = from + (r + i) * stride;
#pragma GCC unroll 4
      for (i64 c = 0; c < TILE; c += sizeof(vu) / sizeof(T)) {
        put(rows + i * TILE + c, fetch<vu>(row + c));
        __builtin_prefetch(row + ahead + c, 0, 2);
      }
    }
#if HAVE_AVX512
    if constexpr (sizeof(T) == 4) {
#pragma GCC unroll 4
      for (i64 c = 0; c < TILE; c += 4) transpose_quads((const f32*)rows + c, TILE, (f32*)to + c * TILE + r, TILE);
      continue;
    }
#endif
    transpose((const T*)rows, TILE, to + r, TILE, LANES, TILE);
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
    if constexpr (sizeof(T) == 2 || sizeof(T) == 4) if (rows == TILE && columns == TILE) return transpose_tile(p, stride, TILE * step, data);
    transpose(p, stride, data, TILE, rows, columns);
  }
  LAMBDA void store(T* p, i64 stride, i64 rows, i64 columns) const { transpose((const T*)data, TILE, p, stride, columns, rows); }
};
