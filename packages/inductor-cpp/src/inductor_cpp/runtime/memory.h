// Loads and stores: contiguous, partial (the last lanes missing), masked, and lane by lane.
template <class V> struct __attribute__((packed, may_alias)) unaligned { V value; };
template <class V> INLINE V fetch(const void* p) { return ((const unaligned<V>*)p)->value; }
template <class V> INLINE void put(void* p, V v) { ((unaligned<V>*)p)->value = v; }

template <int size> struct bits_of_size { typedef u64 type; };
template <> struct bits_of_size<4> { typedef u32 type; };
template <> struct bits_of_size<2> { typedef u16 type; };
template <> struct bits_of_size<1> { typedef u8 type; };

// ---- registers of bits: whole, the first n lanes, or the lanes of a mask (others are zero) ----
#if HAVE_AVX512
template <class V, int size> struct masked;
template <class V> struct masked<V, 64> {
  static inline LAMBDA V load(const void* p, u16 k) { return (V)__builtin_ia32_loadups512_mask((const f32*)p, vf{}, k); }
  static inline LAMBDA void store(void* p, V v, u16 k) { __builtin_ia32_storeups512_mask((f32*)p, (vf)v, k); }
};
template <class V> struct masked<V, 32> {
  static inline LAMBDA V load(const void* p, u16 k) { return (V)__builtin_ia32_loaddquhi256_mask((const i16*)p, vs{}, k); }
  static inline LAMBDA void store(void* p, V v, u16 k) { __builtin_ia32_storedquhi256_mask((i16*)p, (vs)v, k); }
};
template <class V> struct masked<V, 16> {
  static inline LAMBDA V load(const void* p, u16 k) { return (V)__builtin_ia32_loaddquqi128_mask((const char*)p, bytes16{}, k); }
  static inline LAMBDA void store(void* p, V v, u16 k) { __builtin_ia32_storedquqi128_mask((char*)p, (bytes16)v, k); }
};
INLINE vd load_wide(const void* p, u8 k) { return __builtin_ia32_loadupd512_mask((const f64*)p, vd{}, k); }
INLINE void store_wide(void* p, vd v, u8 k) { __builtin_ia32_storeupd512_mask((f64*)p, v, k); }
INLINE u16 first_bits(int n) { return (u16)((1u << n) - 1); }
template <class V> INLINE V fetch_first(const void* p, int n) { return masked<V, sizeof(V)>::load(p, first_bits(n)); }
template <class V> INLINE void put_first(void* p, V v, int n) { masked<V, sizeof(V)>::store(p, v, first_bits(n)); }
template <class V> INLINE V fetch_where(const void* p, vm m) { return masked<V, sizeof(V)>::load(p, bitmask(m)); }
template <class V> INLINE two<V> fetch_first_wide(const void* p, int n) {
  u16 k = first_bits(n);
  return {(V)load_wide(p, (u8)k), (V)load_wide((const char*)p + 64, (u8)(k >> 8))};
}
template <class V> INLINE void put_first_wide(void* p, two<V> v, int n) {
  u16 k = first_bits(n);
  store_wide(p, (vd)v.a, (u8)k); store_wide((char*)p + 64, (vd)v.b, (u8)(k >> 8));
}
template <class V> INLINE two<V> fetch_where_wide(const void* p, vm m) {
  u16 k = bitmask(m);
  return {(V)load_wide(p, (u8)k), (V)load_wide((const char*)p + 64, (u8)(k >> 8))};
}
#else
template <class T> struct __attribute__((may_alias)) aliased { T value; };
template <class T, class V> INLINE V first_of(const void* p, int n) {
  V r{}; T* to = (T*)&r;
  for (int i = 0; i < n; i++) ((aliased<T>*)to)[i].value = ((const aliased<T>*)p)[i].value;
  return r;
}
template <class V, int lanes_in> struct lane_bits { typedef typename bits_of_size<sizeof(V) / lanes_in>::type type; };
template <class V> INLINE V fetch_first(const void* p, int n) { return first_of<typename lane_bits<V, LANES>::type, V>(p, n); }
template <class V> INLINE void put_first(void* p, V v, int n) {
  typedef typename lane_bits<V, LANES>::type T;
  for (int i = 0; i < n; i++) ((aliased<T>*)p)[i].value = ((aliased<T>*)&v)[i].value;
}
template <class V> INLINE V fetch_where(const void* p, vm m) {
  typedef typename lane_bits<V, LANES>::type T;
  V r{};
  for (int i = 0; i < LANES; i++) if (m.bits[i]) ((aliased<T>*)&r)[i].value = ((const aliased<T>*)p)[i].value;
  return r;
}
template <class V> INLINE two<V> fetch_first_wide(const void* p, int n) { return first_of<u64, two<V>>(p, n); }
template <class V> INLINE void put_first_wide(void* p, two<V> v, int n) {
  for (int i = 0; i < n; i++) ((aliased<u64>*)p)[i].value = ((aliased<u64>*)&v)[i].value;
}
template <class V> INLINE two<V> fetch_where_wide(const void* p, vm m) {
  two<V> r{};
  for (int i = 0; i < LANES; i++) if (m.bits[i]) ((aliased<u64>*)&r)[i].value = ((const aliased<u64>*)p)[i].value;
  return r;
}
#endif

const i64 AHEAD = 12;
const i64 WRITTEN_AHEAD = 2048;                               // bytes
template <int W, int written = 0, class T> INLINE void ask_for_lanes(const T* p) {      // at any address
  for (unsigned long c = 0; c < W * sizeof(T); c += 64) __builtin_prefetch((const char*)p + c, written, 3);
}

// Blocks that the heap does not keep (heap.py) are new pages every time: large ones are made and found sooner.
#ifdef __linux__
extern "C" int madvise(void*, unsigned long, int);
template <i64 kept> INLINE void want_large_pages(const void* p, i64 bytes) {
  const u64 any_page = 65536, start = ((u64)p + any_page - 1) & -any_page;
  if (bytes > kept) madvise((void*)start, (u64)p + bytes - start, 14 /* MADV_HUGEPAGE */);
}
#else
template <i64 kept> INLINE void want_large_pages(const void*, i64) {}
#endif

// ---- how each element type lies in memory ----
template <class T> struct memory {   // arithmetic types of at most 4 bytes
  typedef vec<T, LANES> V;
  static inline LAMBDA V load(const T* p, full) { return fetch<V>(p); }
  static inline LAMBDA V load(const T* p, part n) { return fetch_first<V>(p, n.count); }
  static inline LAMBDA V load_where(const T* p, vm m) { return fetch_where<V>(p, m); }
  static inline LAMBDA void store(T* p, V v, full) { put(p, v); }
  static inline LAMBDA void store(T* p, V v, part n) { put_first(p, v, n.count); }
};
template <class T, class V> struct wide_memory {
  static inline LAMBDA two<V> load(const T* p, full) { return {fetch<V>(p), fetch<V>(p + LANES / 2)}; }
  static inline LAMBDA two<V> load(const T* p, part n) { return fetch_first_wide<V>(p, n.count); }
  static inline LAMBDA two<V> load_where(const T* p, vm m) { return fetch_where_wide<V>(p, m); }
  static inline LAMBDA void store(T* p, two<V> v, full) { put(p, v.a); put(p + LANES / 2, v.b); }
  static inline LAMBDA void store(T* p, two<V> v, part n) { put_first_wide(p, v, n.count); }
};
template <> struct memory<f64> : wide_memory<f64, vd> {};
template <> struct memory<i64> : wide_memory<i64, vq> {};
template <class T, class V> struct half_memory {
  static inline LAMBDA V load(const T* p, full) { return {fetch<vh>(p)}; }
  static inline LAMBDA V load(const T* p, part n) { return {fetch_first<vh>(p, n.count)}; }
  static inline LAMBDA V load_where(const T* p, vm m) { return {fetch_where<vh>(p, m)}; }
  static inline LAMBDA void store(T* p, V v, full) { put(p, v.bits); }
  static inline LAMBDA void store(T* p, V v, part n) { put_first(p, v.bits, n.count); }
};
template <> struct memory<bf16> : half_memory<bf16, vbf> {};
template <> struct memory<f16> : half_memory<f16, vhf> {};
template <> struct memory<bool> {
  typedef memory<u8> bytes;
  template <class N> static inline LAMBDA vm load(const bool* p, N n) { return ne(bytes::load((const u8*)p, n), vub{}); }
  static inline LAMBDA vm load_where(const bool* p, vm m) { return ne(bytes::load_where((const u8*)p, m), vub{}); }
  template <class N> static inline LAMBDA void store(bool* p, vm v, N n) { bytes::store((u8*)p, narrowed<vub>(v.bits & 1), n); }
};

// ---- vectors of W lanes ----
template <int W> struct mover {
  static const int H = W / 2;
  template <class T, class N> static inline LAMBDA vec<T, W> load(const T* p, N n) { return {mover<H>::load(p, low<H>(n)), mover<H>::load(p + H, high<H>(n))}; }
  template <class T> static inline LAMBDA vec<T, W> load_where(const T* p, vec<bool, W> m) { return {mover<H>::load_where(p, m.a), mover<H>::load_where(p + H, m.b)}; }
  template <class T, class N> static inline LAMBDA void store(T* p, vec<T, W> v, N n) { mover<H>::store(p, v.a, low<H>(n)); mover<H>::store(p + H, v.b, high<H>(n)); }
};
template <> struct mover<LANES> {
  template <class T, class N> static inline LAMBDA vec<T, LANES> load(const T* p, N n) { return memory<T>::load(p, n); }
  template <class T> static inline LAMBDA vec<T, LANES> load_where(const T* p, vm m) { return memory<T>::load_where(p, m); }
  template <class T, class N> static inline LAMBDA void store(T* p, vec<T, LANES> v, N n) { memory<T>::store(p, v, n); }
};
template <int W, class T, class N> INLINE vec<T, W> load(const T* p, N n) { return mover<W>::load(p, n); }
template <int W, class T, class N> INLINE void store(T* p, vec<T, W> v, N n) { mover<W>::template store<T>(p, v, n); }
#if HAVE_AVX512 && defined(__AVX512VBMI__)
template <int W> struct raiser {
  static inline LAMBDA vec<f32, W> load(const bf16* p) { return {raiser<W / 2>::load(p), raiser<W / 2>::load(p + W / 2)}; }
};
template <> struct raiser<2 * LANES> { static inline LAMBDA two<vf> load(const bf16* p) { return raise(fetch<both_halves>(p)); } };
template <> struct raiser<LANES> { static inline LAMBDA vf load(const bf16* p) { return raise(memory<bf16>::load(p, full{})); } };
template <int W> INLINE vec<f32, W> load_raised(const bf16* p, full) { return raiser<W>::load(p); }
template <int W> INLINE vec<f32, W> load_raised(const bf16* p, part n) { return cast<f32>(load<W>(p, n)); }
#else
template <int W, class N> INLINE vec<f32, W> load_raised(const bf16* p, N n) { return cast<f32>(load<W>(p, n)); }
#endif
INLINE void put_rounded(bf16* p, vf v) { put(p, to_bf16(v).bits); }
#if HAVE_PACKED_BF16
INLINE void put_rounded(bf16* p, two<vf> v) { put(p, packed_bf16(v)); }   // one store, and no halves to take apart
#endif
template <class H> INLINE void put_rounded(bf16* p, two<H> v) { put_rounded(p, v.a); put_rounded(p + sizeof(H) / 4, v.b); }
template <int W> INLINE void store_rounded(bf16* p, vec<f32, W> v, full) { put_rounded(p, v); }
template <int W> INLINE void store_rounded(bf16* p, vec<f32, W> v, part n) { store<W, bf16>(p, cast<bf16>(v), n); }
template <int W, class T, class N> INLINE vec<T, W> load_if(const T* p, N n, vec<bool, W> m, vec<T, W> other) {
  auto in = m & present<W>(n);
  return where(in, mover<W>::load_where(p, in), other);
}

// ---- lane by lane: `at(lane)` gives the element, as a value or as a reference ----
template <class T, int W> struct lane_array {
  T item[W];
  LAMBDA lane_array() {}
  LAMBDA lane_array(vec<T, W> v) { mover<W>::template store<T>(item, v, full{}); }
  LAMBDA T operator[](i64 lane) const { return item[lane]; }
};
template <int W, class T, class N, class F> INLINE vec<T, W> gather(N n, F at) {
  lane_array<T, W> r; int count = count_of<W>(n);
  for (int i = 0; i < count; i++) r.item[i] = at(i);
  return load<W>((const T*)r.item, full{});
}
template <int W, class T, class N, class F> INLINE vec<T, W> gather_if(N n, vec<bool, W> m, vec<T, W> other, F at) {
  lane_array<T, W> r(other); lane_array<bool, W> in(m); int count = count_of<W>(n);
  for (int i = 0; i < count; i++) if (in[i]) r.item[i] = at(i);
  return load<W>((const T*)r.item, full{});
}
template <int W, class T, class N, class F> INLINE void scatter(N n, vec<T, W> v, F at) {
  lane_array<T, W> r(v); int count = count_of<W>(n);
  for (int i = 0; i < count; i++) at(i) = r.item[i];
}
template <int W, class N> INLINE bool outside(vec<i64, W> v, i64 size, N n) {   // some existing lane is not in [0, size)
  return any((lt(v, splat<W>((i64)0)) | le(splat<W>(size), v)) & present<W>(n));
}
INLINE bool outside(i64 v, i64 size) { return v < 0 || v >= size; }
template <int W, class V, class N> INLINE bool has_zero(V v, N n) { return any(eq(v, V{}) & present<W>(n)); }   // in an existing lane

template <int W, class T, class N> INLINE vec<T, W> splat_if(const T* p, N n, vec<bool, W> m, vec<T, W> other) {   // one place
  auto in = m & present<W>(n);
  return any(in) ? where(in, splat<W>(*p), other) : other;
}

// ---- every second element ----
#if HAVE_AVX512
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SPREAD_LOW 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7
#define SPREAD_HIGH 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15
INLINE u16 spread(u32 bits) { return (u16)__builtin_ia32_pdep_si(bits, 0x5555); }
template <int size> struct register_of { typedef vu type; };
template <> struct register_of<2> { typedef vh type; };
template <> struct register_of<1> { typedef vub type; };
template <class T> struct evens {   // of at most 4 bytes each, in the lanes of k
  typedef typename register_of<sizeof(T)>::type V;
  static inline LAMBDA vec<T, LANES> load(const T* p, u16 k) {
    V a = masked<V, sizeof(V)>::load(p, spread(k)), b = masked<V, sizeof(V)>::load(p + LANES, spread(k >> 8));
    V r = __builtin_shufflevector(a, b, EVENS);
    return memory<T>::load((const T*)&r, full{});
  }
  static inline LAMBDA void store(T* p, vec<T, LANES> v, u16 k) {
    V r; memory<T>::store((T*)&r, v, full{});
    masked<V, sizeof(V)>::store(p, __builtin_shufflevector(r, r, SPREAD_LOW), spread(k));
    masked<V, sizeof(V)>::store(p + LANES, __builtin_shufflevector(r, r, SPREAD_HIGH), spread(k >> 8));
  }
};
template <int W> struct even_mover {
  template <class T> static inline LAMBDA vec<T, W> load(const T* p, vec<bool, W> m) {
    return {even_mover<W / 2>::load(p, m.a), even_mover<W / 2>::load(p + W, m.b)}; }
  template <class T> static inline LAMBDA void store(T* p, vec<T, W> v, vec<bool, W> m) {
    even_mover<W / 2>::template store<T>(p, v.a, m.a); even_mover<W / 2>::template store<T>(p + W, v.b, m.b); }
};
template <> struct even_mover<LANES> {
  template <class T> static inline LAMBDA vec<T, LANES> load(const T* p, vm m) { return evens<T>::load(p, bitmask(m)); }
  template <class T> static inline LAMBDA void store(T* p, vec<T, LANES> v, vm m) { evens<T>::store(p, v, bitmask(m)); }
};
template <int W, class T, class N> INLINE vec<T, W> load_even(const T* p, N n) { return even_mover<W>::load(p, present<W>(n)); }
template <int W, class T, class N> INLINE vec<T, W> load_even_if(const T* p, N n, vec<bool, W> m, vec<T, W> other) {
  auto in = m & present<W>(n);
  return where(in, even_mover<W>::load(p, in), other);
}
template <int W, class T, class N> INLINE void store_even(T* p, vec<T, W> v, N n) {
  even_mover<W>::template store<T>(p, v, present<W>(n));
}
#else
template <int W, class T, class N> INLINE vec<T, W> load_even(const T* p, N n) {
  return gather<W, T>(n, [&](i64 k) LAMBDA -> T { return p[2 * k]; });
}
template <int W, class T, class N> INLINE vec<T, W> load_even_if(const T* p, N n, vec<bool, W> m, vec<T, W> other) {
  return gather_if<W, T>(n, m, other, [&](i64 k) LAMBDA -> T { return p[2 * k]; });
}
template <int W, class T, class N> INLINE void store_even(T* p, vec<T, W> v, N n) {
  scatter<W, T>(n, v, [&](i64 k) LAMBDA -> T& { return p[2 * k]; });
}
#endif

// ---- accumulation into memory ----
template <class T> INLINE T sum_of(T a, T b) { return (T)(a + b); }
INLINE bf16 sum_of(bf16 a, bf16 b) { return to_bf16(raise(a) + raise(b)); }
INLINE f16 sum_of(f16 a, f16 b) { return to_f16(raise(a) + raise(b)); }
INLINE bool sum_of(bool a, bool b) { return a | b; }
template <class T> INLINE void add_to(T& place, T v, bool shared) {              // shared: other threads may add to the same place
  if (!shared) { place = sum_of(place, v); return; }
  typedef typename bits_of_size<sizeof(T)>::type U;
  U* bits = (U*)&place;
  for (U old = __atomic_load_n(bits, __ATOMIC_RELAXED);;) {
    U next = __builtin_bit_cast(U, sum_of(__builtin_bit_cast(T, old), v));
    if (__atomic_compare_exchange_n(bits, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  }
}
template <int W, class T, class N, class F> INLINE void scatter_add(N n, vec<T, W> v, bool shared, F at) {
  lane_array<T, W> r(v); int count = count_of<W>(n);
  for (int i = 0; i < count; i++) add_to(at(i), r.item[i], shared);
}
template <int W, class T, class N> INLINE void add_lanes(T* p, vec<T, W> v, N n, bool shared) {
  if (shared) { scatter_add<W, T>(n, v, true, [&](i64 k) LAMBDA -> T& { return p[k]; }); return; }
  lane_array<T, W> r(v); int count = count_of<W>(n);
  for (int i = 0; i < count; i++) p[i] = sum_of(p[i], r.item[i]);
}

// ---- a row of values that a later pass over the same row reads again ----
extern "C" void* aligned_alloc(unsigned long, unsigned long); extern "C" void free(void*);
template <class T> struct scratch {
  T* data;
  scratch(i64 count) : data((T*)aligned_alloc(64, ((unsigned long)(count > 0 ? count : 1) * sizeof(T) + 63) / 64 * 64)) {}
  ~scratch() { free(data); }
};
