// Reductions: every lane accumulates by itself, lanes are combined at the end by halves. `part` steps add nothing for missing lanes.
#define ROTATIONS_16(X) X(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7) X(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11) \
  X(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13) X(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define ROTATIONS_8(X) X(4, 5, 6, 7, 0, 1, 2, 3) X(2, 3, 0, 1, 6, 7, 4, 5) X(1, 0, 3, 2, 5, 4, 7, 6)
#define ROTATIONS_4(X) X(2, 3, 0, 1) X(1, 0, 3, 2)
#if LANES == 16
#define ROTATIONS ROTATIONS_16
#define HALF_ROTATIONS ROTATIONS_8
#elif LANES == 8
#define ROTATIONS ROTATIONS_8
#define HALF_ROTATIONS ROTATIONS_4
#else
#define ROTATIONS ROTATIONS_4
#define HALF_ROTATIONS(X) X(1, 0)
#endif
const f32 INF32 = __builtin_inff();
const f64 INF64 = __builtin_inf();
template <class T> INLINE T lowest(tag<T>) { return (T)-1 < 0 ? (T)(1ull << (sizeof(T) * 8 - 1)) : (T)0; }
INLINE f32 lowest(tag<f32>) { return -INF32; }
INLINE f64 lowest(tag<f64>) { return -INF64; }
INLINE bool lowest(tag<bool>) { return false; }
template <class T> INLINE T highest(tag<T> t) { return (T)~lowest(t); }
INLINE f32 highest(tag<f32>) { return INF32; }
INLINE f64 highest(tag<f64>) { return INF64; }
INLINE bool highest(tag<bool>) { return true; }
struct plus { template <class V> static inline LAMBDA V apply(V a, V b) { return a + b; } template <class T> static inline LAMBDA T start(tag<T>) { return 0; } };
struct times { template <class V> static inline LAMBDA V apply(V a, V b) { return a * b; } template <class T> static inline LAMBDA T start(tag<T>) { return 1; } };
struct greatest { template <class V> static inline LAMBDA V apply(V a, V b) { return maximum(a, b); } template <class T> static inline LAMBDA T start(tag<T> t) { return lowest(t); } };
struct least { template <class V> static inline LAMBDA V apply(V a, V b) { return minimum(a, b); } template <class T> static inline LAMBDA T start(tag<T> t) { return highest(t); } };
struct either { template <class V> static inline LAMBDA V apply(V a, V b) { return a | b; } static inline LAMBDA bool start(tag<bool>) { return false; } };
struct both { template <class V> static inline LAMBDA V apply(V a, V b) { return a & b; } static inline LAMBDA bool start(tag<bool>) { return true; } };

template <class Op, class T, int W> struct combine {
  static inline LAMBDA T all(vec<T, W> v) { return combine<Op, T, W / 2>::all(Op::apply(v.a, v.b)); }
};
template <class Op, class T> struct combine<Op, T, LANES> {
  static inline LAMBDA T all(vec<T, LANES> v) {
    lane_array<T, LANES> r(v);
    for (int h = LANES / 2; h > 0; h /= 2) for (int i = 0; i < h; i++) r.item[i] = Op::apply(r.item[i], r.item[i + h]);
    return r.item[0];
  }
};
#define ROTATE(...) v = Op::apply(v, __builtin_shufflevector(v, v, __VA_ARGS__));
template <class Op> struct combine<Op, f32, LANES> { static inline LAMBDA f32 all(vf v) { ROTATIONS(ROTATE) return v[0]; } };
template <class Op> struct combine<Op, i32, LANES> { static inline LAMBDA i32 all(vi v) { ROTATIONS(ROTATE) return v[0]; } };
#define COMBINE_WIDE(T, V) template <> struct combine<plus, T, LANES> { \
  typedef plus Op; static inline LAMBDA T all(two<V> x) { V v = x.a + x.b; HALF_ROTATIONS(ROTATE) return v[0]; } };
COMBINE_WIDE(f64, vd) COMBINE_WIDE(i64, vq)
template <class Op, class T> struct combine<Op, T, 1> { static inline LAMBDA T all(T v) { return v; } };

template <class Op, class T, int W> struct fold {
  typedef vec<T, W> V;
  V lanes;
  LAMBDA fold() : lanes(splat<W>(Op::start(tag<T>{}))) {}
  LAMBDA void add(V v, full) { lanes = Op::apply(lanes, v); }
  LAMBDA void add(V v, part n) { lanes = Op::apply(lanes, where(present<W>(n), v, splat<W>(Op::start(tag<T>{})))); }
  LAMBDA T total() const { return combine<Op, T, W>::all(lanes); }
};
template <int W, class T, class N> INLINE T total(vec<T, W> v, N n) { fold<plus, T, W> sum; sum.add(v, n); return sum.total(); }
// Sums of many floats: partial sums move up one level after BLOCK additions, which bounds the error as pairwise summation does;
// the levels and the lanes are combined in float64. So few that two levels hold them need not be `deep`.
const i64 BLOCK = 16;
template <class T, int W, bool deep = true> struct cascade {
  typedef vec<T, W> V;
  V lanes, middle, high, lost;
  i64 flushes = 0;
  LAMBDA cascade() : lanes(splat<W>((T)0)), middle(lanes), high(lanes), lost(lanes) {}
  LAMBDA void add(V v, full) { lanes = lanes + v; }
  LAMBDA void add(V v, part n) { lanes = lanes + where(present<W>(n), v, splat<W>((T)0)); }
  LAMBDA void flush() {
    middle = middle + lanes; lanes = splat<W>((T)0);
    if (!deep || ++flushes % BLOCK) return;
    V next = high + middle, kept = next - high;                            // two-sum: what the addition rounds away is kept
    lost = lost + ((high - (next - kept)) + (middle - kept));
    high = next; middle = splat<W>((T)0);
  }
  LAMBDA vec<f64, W> exact() const {
    if constexpr (!deep) return cast<f64>(middle + lanes);                  // after the last flush one of them is zero
    vec<f64, W> top = cast<f64>(high), rest = cast<f64>(lanes) + cast<f64>(middle);
    return top + rest + where(eq(lost, lost), cast<f64>(lost), splat<W>(0.));   // infinities leave NaN in `lost`
  }
  LAMBDA void finish() { lanes = cast<T>(exact()); }
  LAMBDA T total() const { return (T)combine<plus, f64, W>::all(exact()); }
};
// Sums of float64, which nothing wider holds: what each addition rounds away is added up beside.
template <int W> struct precise {
  typedef vec<f64, W> V;
  V sum, lost, lanes;
  LAMBDA precise() : sum(splat<W>(0.)), lost(sum) {}
  LAMBDA void add(V v, full) {
    V next = sum + v, kept = next - sum;
    lost = lost + ((sum - (next - kept)) + (v - kept));
    sum = next;
  }
  LAMBDA void add(V v, part n) { add(where(present<W>(n), v, splat<W>(0.)), full{}); }
  LAMBDA V exact() const { return sum + where(eq(lost, lost), lost, splat<W>(0.)); }
  LAMBDA void finish() { lanes = exact(); }
  LAMBDA f64 total() const {
    lane_array<f64, W> s(sum), l(lost);
    precise<1> all;
    for (int i = 0; i < W; i++) { all.add(s.item[i], full{}); all.lost += l.item[i]; }
    return all.exact();
  }
};
// One running result per column of a block, while rows go by in groups of GROUP, few enough that each is a stream of its own for the
// processor. A group's result is added to `near`; sums of floats move on to `row`, in float64, after BLOCK groups.
const i64 GROUP = 8;
template <class Op, class T> struct column_type { static const bool sums = false; typedef T type; };
template <> struct column_type<plus, f32> { static const bool sums = true; typedef f64 type; };
template <class Op, class T> struct columns {
  typedef typename column_type<Op, T>::type A;
  static const bool sums = column_type<Op, T>::sums;
  scratch<T> near;
  scratch<A> row;
  i64 count = 0, groups = 0;
  LAMBDA columns(i64 most) : near(most), row(sums ? most : 0) {}
  LAMBDA void reset(i64 columns) {
    count = columns; groups = 0;
    for (i64 i = 0; i < count; i++) near.data[i] = Op::start(tag<T>{});
    if (sums) for (i64 i = 0; i < count; i++) row.data[i] = 0;
  }
  template <int W, class N> LAMBDA void merge(i64 i, vec<T, W> v, N n) {
    store<W, T>(near.data + i, Op::apply(load<W>((const T*)near.data + i, n), v), n);
  }
  LAMBDA void next() { if constexpr (sums) if (++groups % BLOCK == 0) flush(); }
  __attribute__((noinline)) void flush() {
    lanes<LANES>(0, count, [&](i64 i, auto n) LAMBDA {
      store<LANES, A>(row.data + i, load<LANES>((const A*)row.data + i, n) + cast<A>(load<LANES>((const T*)near.data + i, n)), n);
      store<LANES, T>(near.data + i, splat<LANES>((T)0), n);
      return 0;
    });
  }
  template <int W, class N> LAMBDA vec<T, W> get(i64 i, N n) const {
    vec<T, W> last = load<W>((const T*)near.data + i, n);
    if constexpr (sums) return cast<T>(load<W>((const A*)row.data + i, n) + cast<A>(last));
    else return last;
  }
  void write(A* to) const {
    lanes<LANES>(0, count, [&](i64 i, auto n) LAMBDA {
      store<LANES, A>(to + i, load<LANES>((const A*)row.data + i, n) + cast<A>(load<LANES>((const T*)near.data + i, n)), n);
      return 0;
    });
  }
};
template <int W, i64 D = 1, class F, class G> INLINE int lanes_blocked(i64 begin, i64 end, F step, G flush) {
  for (i64 b = begin; b < end; b += BLOCK * W) {
    if (int error = lanes<W, D>(b, index_min(b + BLOCK * W, end), step)) return error;
    flush();
  }
  return 0;
}

// Position of the first greatest (or least) value; NaN counts as the most extreme one.
template <bool greater, class T, int W> struct extreme_place {
  typedef vec<T, W> V;
  V value;
  vec<i64, W> lanes;
  LAMBDA extreme_place() : value(splat<W>((T)0)), lanes(splat<W>((i64)-1)) {}
  template <class M> static inline LAMBDA auto beats(M a, M b) { return (greater ? lt(b, a) : lt(a, b)) | (ne(a, a) & eq(b, b)); }
  template <class N> LAMBDA void add(V v, vec<i64, W> place, N n) {
    auto take = (beats(v, value) | lt(lanes, splat<W>((i64)0))) & present<W>(n);
    value = where(take, v, value);
    lanes = where(take, place, lanes);
  }
  LAMBDA i64 total() const {
    lane_array<T, W> v(value); lane_array<i64, W> p(lanes);
    T best = v.item[0]; i64 place = p.item[0];
    for (int i = 1; i < W; i++) {
      if (p.item[i] < 0) continue;
      bool tie = !beats(best, v.item[i]) && p.item[i] < place;
      if (place < 0 || beats(v.item[i], best) || tie) { best = v.item[i]; place = p.item[i]; }
    }
    return place;
  }
};

// ---- inclusive prefixes in order; float32 accumulates in float64, as ATen does ----
template <class T> struct wider { typedef T type; };
template <> struct wider<f32> { typedef f64 type; };
template <class Op, class T, int W> struct prefix_over_rows {                          // each lane scans its own sequence
  typedef typename wider<T>::type A;
  vec<A, W> carry;
  LAMBDA prefix_over_rows() : carry(splat<W>(Op::start(tag<A>{}))) {}
  LAMBDA vec<T, W> next(vec<T, W> v) { carry = Op::apply(carry, cast<A>(v)); return cast<T>(carry); }
};
#if LANES == 16
#define SHIFTS(X) X(0, 8, 9, 10, 11, 12, 13, 14) X(0, 1, 8, 9, 10, 11, 12, 13) X(0, 1, 2, 3, 8, 9, 10, 11)
#elif LANES == 8
#define SHIFTS(X) X(0, 4, 5, 6) X(0, 1, 4, 5)
#else
#define SHIFTS(X) X(0, 2)
#endif
template <class Op, class V, class A> INLINE V prefix_of(V x, A& carry) {             // log2 shifted steps within the register
  V start = V{} + Op::start(tag<A>{});
#define SHIFT(...) x = Op::apply(__builtin_shufflevector(start, x, __VA_ARGS__), x);
  SHIFTS(SHIFT)
  x = Op::apply(V{} + carry, x);
  carry = x[sizeof(V) / sizeof(A) - 1];
  return x;
}
template <class Op, class H, class A> INLINE two<H> prefix_of(two<H> x, A& carry) {
  H a = prefix_of<Op>(x.a, carry);
  return {a, prefix_of<Op>(x.b, carry)};
}
template <class Op, class A> struct in_registers { static const bool value = false; };
template <> struct in_registers<plus, f64> { static const bool value = true; };
template <> struct in_registers<plus, i64> { static const bool value = true; };
template <> struct in_registers<times, f64> { static const bool value = true; };
template <> struct in_registers<times, i64> { static const bool value = true; };
template <class Op, class T, int W> struct prefix_over_lanes {                         // lanes are consecutive
  typedef typename wider<T>::type A;
  A carry;
  LAMBDA prefix_over_lanes() : carry(Op::start(tag<A>{})) {}
  template <class N> LAMBDA vec<T, W> next(vec<T, W> v, N n) {                          // after a `part` nothing follows
    if constexpr (in_registers<Op, A>::value) return cast<T>(prefix_of<Op>(cast<A>(v), carry));
    lane_array<T, W> r(v);
    for (int i = 0; i < count_of<W>(n); i++) { carry = Op::apply(carry, (A)r.item[i]); r.item[i] = (T)carry; }
    return load<W>((const T*)r.item, full{});
  }
};
