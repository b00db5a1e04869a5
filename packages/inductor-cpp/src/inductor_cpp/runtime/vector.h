// Vectors of LANES elements over GCC vector extensions. Nothing is included: system headers cost more than the kernels.
// A leaf holds LANES elements: one native register for 4-byte types, less for shorter ones, `two` registers for 8-byte ones.
// Wider vectors are pairs of leaves, so that independent operations interleave. A scalar is a vector of one element.
typedef float f32; typedef double f64; typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32; typedef unsigned long long u64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
#define INLINE static inline __attribute__((always_inline))
#define LAMBDA __attribute__((always_inline))
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && !defined(__clang__)
#define HAVE_AVX512 1
#endif
#if defined(__AVX2__) && defined(__FMA__) && !defined(HAVE_AVX512) && !defined(__clang__)
#define HAVE_AVX2 1
#endif
#if defined(__aarch64__) && defined(__ARM_NEON)              // one instruction of assembly each: compilers name their builtins differently
#define HAVE_NEON 1
#define NEON1(text, V, x) V r; asm(text : "=w"(r) : "w"(x)); return r;
#define NEON2(text, V, x, y) V r; asm(text : "=w"(r) : "w"(x), "w"(y)); return r;
#endif
#if defined(__AVX512F__)
#define LANES 16
#define ALL_LANES 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define LOW_LANES 0, 1, 2, 3, 4, 5, 6, 7
#define HIGH_LANES 8, 9, 10, 11, 12, 13, 14, 15
#elif defined(__AVX2__)
#define LANES 8
#define ALL_LANES 0, 1, 2, 3, 4, 5, 6, 7
#define LOW_LANES 0, 1, 2, 3
#define HIGH_LANES 4, 5, 6, 7
#else
#define LANES 4
#define ALL_LANES 0, 1, 2, 3
#define LOW_LANES 0, 1
#define HIGH_LANES 2, 3
#endif
#define VECTOR(T, count) T __attribute__((vector_size(sizeof(T) * (count))))
typedef VECTOR(f32, LANES) vf; typedef VECTOR(i32, LANES) vi; typedef VECTOR(u32, LANES) vu; typedef VECTOR(i16, LANES) vs;
typedef VECTOR(u16, LANES) vh; typedef VECTOR(i8, LANES) vb; typedef VECTOR(u8, LANES) vub;
typedef VECTOR(f64, LANES / 2) vd; typedef VECTOR(i64, LANES / 2) vq; typedef VECTOR(u64, LANES / 2) vuq;
typedef VECTOR(f32, LANES / 2) half_f; typedef VECTOR(i32, LANES / 2) half_i; typedef VECTOR(u32, LANES / 2) half_u;
struct vm { vi bits; };     // bool: 0 or -1 per lane
struct vbf { vh bits; };    // bfloat16 and float16 are storage only
struct vhf { vh bits; };
template <class H> struct two { H a, b; };
typedef two<vd> vdd; typedef two<vq> vqq;

template <class T> struct leaf_of;
template <> struct leaf_of<f32> { typedef vf type; };
template <> struct leaf_of<f64> { typedef vdd type; };
template <> struct leaf_of<i8> { typedef vb type; };
template <> struct leaf_of<u8> { typedef vub type; };
template <> struct leaf_of<i16> { typedef vs type; };
template <> struct leaf_of<i32> { typedef vi type; };
template <> struct leaf_of<i64> { typedef vqq type; };
template <> struct leaf_of<bool> { typedef vm type; };
template <> struct leaf_of<bf16> { typedef vbf type; };
template <> struct leaf_of<f16> { typedef vhf type; };
template <class T, int W> struct vec_of { typedef two<typename vec_of<T, W / 2>::type> type; };
template <class T> struct vec_of<T, LANES> { typedef typename leaf_of<T>::type type; };
template <class T> struct vec_of<T, 1> { typedef T type; };
template <class T, int W> using vec = typename vec_of<T, W>::type;
template <class T> struct tag {};

// How many lanes of a step exist: all (full), or the first `count` (part) at the end of a loop.
struct full {};
struct part { int count; };
template <int H> INLINE full low(full) { return {}; }
template <int H> INLINE full high(full) { return {}; }
template <int H> INLINE part low(part n) { return {n.count < H ? n.count : H}; }
template <int H> INLINE part high(part n) { return {n.count > H ? n.count - H : 0}; }
template <int W> INLINE int count_of(full) { return W; }
template <int W> INLINE int count_of(part n) { return n.count; }
const vi LANE = {ALL_LANES};

// Runs step(i, lanes) over [begin, end) until it returns non-zero (an error). D is a known divisor of end - begin.
const int INDEX_OUT_OF_RANGE = 1, DIVISION_BY_ZERO = 2;
template <int W, i64 D = 1, class F> INLINE int lanes(i64 begin, i64 end, F step) {
  i64 i = begin;
  for (; i + W <= end; i += W) if (int error = step(i, full{})) return error;
  if constexpr (D % W != 0) if (i < end) return step(i, part{int(end - i)});
  return 0;
}

// ---- halves of a leaf ----
INLINE half_f low_half(vf x) { return __builtin_shufflevector(x, x, LOW_LANES); }
INLINE half_f high_half(vf x) { return __builtin_shufflevector(x, x, HIGH_LANES); }
INLINE half_i low_half(vi x) { return __builtin_shufflevector(x, x, LOW_LANES); }
INLINE half_i high_half(vi x) { return __builtin_shufflevector(x, x, HIGH_LANES); }
INLINE half_u low_half(vu x) { return __builtin_shufflevector(x, x, LOW_LANES); }
INLINE half_u high_half(vu x) { return __builtin_shufflevector(x, x, HIGH_LANES); }
INLINE vf join(half_f a, half_f b) { return __builtin_shufflevector(a, b, ALL_LANES); }
INLINE vi join(half_i a, half_i b) { return __builtin_shufflevector(a, b, ALL_LANES); }
#define CONVERT __builtin_convertvector
// GCC splits a widening to a whole register in two and joins the halves; the instruction does not.
#if HAVE_AVX512
typedef VECTOR(char, 16) bytes16;
INLINE vu widened(vh x) { return (vu)__builtin_ia32_pmovzxwd512_mask((vs)x, vi{}, -1); }
INLINE vi widened(vs x) { return __builtin_ia32_pmovsxwd512_mask(x, vi{}, -1); }
INLINE vi widened(vb x) { return __builtin_ia32_pmovsxbd512_mask((bytes16)x, vi{}, -1); }
INLINE vi widened(vub x) { return __builtin_ia32_pmovzxbd512_mask((bytes16)x, vi{}, -1); }
INLINE vq widened(half_i x) { return __builtin_ia32_pmovsxdq512_mask(x, vq{}, -1); }
INLINE vd widened(half_f x) { return __builtin_ia32_cvtps2pd512_mask(x, vd{}, -1, 4); }
INLINE vq truncated(half_f x) { return __builtin_ia32_cvttps2qq512_mask(x, vq{}, -1, 4); }
#else
#define WIDENED(V, from) INLINE V widened(from x) { return CONVERT(x, V); }
#if HAVE_AVX2
INLINE vu widened(vh x) { return (vu)__builtin_ia32_pmovzxwd256((vs)x); }
INLINE vi widened(vs x) { return __builtin_ia32_pmovsxwd256(x); }
INLINE vq widened(half_i x) { return __builtin_ia32_pmovsxdq256(x); }
INLINE vd widened(half_f x) { return __builtin_ia32_cvtps2pd256(x); }
#else
WIDENED(vu, vh) WIDENED(vi, vs) WIDENED(vq, half_i)
#endif
#if HAVE_NEON                                                // GCC takes four bytes, or two float32, one by one
INLINE vi widened(vb x) { NEON1("sshll %0.8h, %1.8b, #0\n\tsshll %0.4s, %0.4h, #0", vi, __builtin_bit_cast(f32, x)) }
INLINE vi widened(vub x) { NEON1("ushll %0.8h, %1.8b, #0\n\tushll %0.4s, %0.4h, #0", vi, __builtin_bit_cast(f32, x)) }
INLINE vd widened(half_f x) { NEON1("fcvtl %0.2d, %1.2s", vd, x) }
INLINE vq truncated(half_f x) { NEON1("fcvtzs %0.2d, %1.2d", vq, widened(x)) }
#else
WIDENED(vi, vb) WIDENED(vi, vub)
#if !HAVE_AVX2
WIDENED(vd, half_f)
#endif
INLINE vq truncated(half_f x) { return CONVERT(x, vq); }
#endif
#endif
#if HAVE_NEON
INLINE f32 low_bytes(vi x) { NEON1("xtn %0.4h, %1.4s\n\txtn %0.8b, %0.8h", f32, x) }
template <class V> INLINE V narrowed(vi x) { if constexpr (sizeof(V) == 4) return __builtin_bit_cast(V, low_bytes(x)); else return CONVERT(x, V); }
#define BYTES_COMPARED(op) widened(x) op widened(y)
#else
template <class V> INLINE V narrowed(vi x) { return CONVERT(x, V); }
#define BYTES_COMPARED(op) widened((vb)(x op y))
#endif
INLINE vqq widen(vi m) { return {widened(low_half(m)), widened(high_half(m))}; }
INLINE vi narrow(vqq x) { return join(CONVERT(x.a, half_i), CONVERT(x.b, half_i)); }

// ---- splat and lane numbers ----
template <int W> struct splatter {
  template <class T> static inline LAMBDA vec<T, W> of(T x) { auto h = splatter<W / 2>::of(x); return {h, h}; }
};
template <> struct splatter<LANES> {
  static inline LAMBDA vf of(f32 x) { return x - vf{}; }                 // the order keeps -0.0
  static inline LAMBDA vi of(i32 x) { return vi{} + x; }
  static inline LAMBDA vs of(i16 x) { return vs{} + x; }
  static inline LAMBDA vb of(i8 x) { return vb{} + x; }
  static inline LAMBDA vub of(u8 x) { return vub{} + x; }
  static inline LAMBDA vdd of(f64 x) { vd h = x - vd{}; return {h, h}; }
  static inline LAMBDA vqq of(i64 x) { vq h = vq{} + x; return {h, h}; }
  static inline LAMBDA vm of(bool x) { return {vi{} - (x ? 1 : 0)}; }
  static inline LAMBDA vbf of(bf16 x) { return {vh{} + x.bits}; }
  static inline LAMBDA vhf of(f16 x) { return {vh{} + x.bits}; }
};
template <> struct splatter<1> { template <class T> static inline LAMBDA T of(T x) { return x; } };
template <int W, class T> INLINE vec<T, W> splat(T x) { return splatter<W>::of(x); }

template <int W> struct counter { static inline LAMBDA vec<i64, W> of(i64 base, i64 step) {
  return {counter<W / 2>::of(base, step), counter<W / 2>::of(base + step * (W / 2), step)}; } };
template <> struct counter<LANES> { static inline LAMBDA vqq of(i64 base, i64 step) {
  vqq lane = widen(LANE); return {lane.a * step + base, lane.b * step + base}; } };
template <> struct counter<1> { static inline LAMBDA i64 of(i64 base, i64) { return base; } };
template <int W> INLINE vec<i64, W> iota(i64 base, i64 step) { return counter<W>::of(base, step); }   // base + lane * step
template <int W> struct lane_counter { static inline LAMBDA vec<i32, W> from(i32 base) {
  return {lane_counter<W / 2>::from(base), lane_counter<W / 2>::from(base + W / 2)}; } };
template <> struct lane_counter<LANES> { static inline LAMBDA vi from(i32 base) { return LANE + base; } };
template <int W> INLINE vec<i32, W> lane_numbers() { return lane_counter<W>::from(0); }
// The lane that has `number` when lane 0 has `first`, or one before or behind them all.
template <int W> INLINE i32 lane_of(i64 number, i64 first) { return number < first ? -1 : (u64)(number - first) > W ? W : (i32)(number - first); }

template <int W> struct prefix { template <class N> static inline LAMBDA vec<bool, W> of(N n) {
  return {prefix<W / 2>::of(low<W / 2>(n)), prefix<W / 2>::of(high<W / 2>(n))}; } };
template <> struct prefix<LANES> {
  static inline LAMBDA vm of(full) { return {vi{} - 1}; }
  static inline LAMBDA vm of(part n) { return {LANE < n.count}; }
};
template <> struct prefix<1> { template <class N> static inline LAMBDA bool of(N) { return true; } };
template <int W, class N> INLINE vec<bool, W> present(N n) { return prefix<W>::of(n); }   // true in lanes that exist

// ---- arithmetic on pairs; leaves have the operators already ----
#define PAIR_OPERATOR(op) template <class H> INLINE two<H> operator op(two<H> x, two<H> y) { return {x.a op y.a, x.b op y.b}; }
PAIR_OPERATOR(+) PAIR_OPERATOR(-) PAIR_OPERATOR(*) PAIR_OPERATOR(&) PAIR_OPERATOR(|) PAIR_OPERATOR(^)
template <class H> INLINE two<H> operator-(two<H> x) { return {-x.a, -x.b}; }
template <class H> INLINE two<H> operator~(two<H> x) { return {~x.a, ~x.b}; }
INLINE vm operator&(vm x, vm y) { return {x.bits & y.bits}; }
INLINE vm operator|(vm x, vm y) { return {x.bits | y.bits}; }
INLINE vm operator^(vm x, vm y) { return {x.bits ^ y.bits}; }
INLINE vm operator~(vm x) { return {~x.bits}; }
INLINE vm logical_not(vm x) { return ~x; }
INLINE bool logical_not(bool x) { return !x; }
template <class H> INLINE two<H> logical_not(two<H> x) { return ~x; }
template <class H> INLINE two<H> pair(H a, H b) { return {a, b}; }
#define LIFT1(f) template <class H> INLINE auto f(two<H> x) { return pair(f(x.a), f(x.b)); }
#define LIFT2(f) template <class H> INLINE auto f(two<H> x, two<H> y) { return pair(f(x.a, y.a), f(x.b, y.b)); }

// ---- comparison (result: bool) and selection ----
#define FOR_SCALARS(X) X(f32) X(f64) X(i64) X(i32) X(i16) X(i8) X(u8) X(bool)
#define COMPARISON(f, op, bools) \
  INLINE vm f(vf x, vf y) { return {x op y}; } \
  INLINE vm f(vi x, vi y) { return {x op y}; } \
  INLINE vm f(vs x, vs y) { return {widened((vs)(x op y))}; } \
  INLINE vm f(vb x, vb y) { return {BYTES_COMPARED(op)}; } \
  INLINE vm f(vub x, vub y) { return {BYTES_COMPARED(op)}; } \
  INLINE vm f(vm x, vm y) { return {bools}; } \
  INLINE vm f(vdd x, vdd y) { return {narrow(vqq{x.a op y.a, x.b op y.b})}; } \
  INLINE vm f(vqq x, vqq y) { return {narrow(vqq{x.a op y.a, x.b op y.b})}; } \
  template <class T> INLINE bool f(T x, T y) { return x op y; } \
  LIFT2(f)
COMPARISON(eq, ==, ~(x.bits ^ y.bits)) COMPARISON(ne, !=, x.bits ^ y.bits)
COMPARISON(lt, <, ~x.bits & y.bits) COMPARISON(le, <=, ~x.bits | y.bits)

INLINE vf where(vm m, vf a, vf b) { return m.bits ? a : b; }
INLINE vi where(vm m, vi a, vi b) { return m.bits ? a : b; }
INLINE vs where(vm m, vs a, vs b) { return narrowed<vs>(m.bits) ? a : b; }
INLINE vb where(vm m, vb a, vb b) { return narrowed<vb>(m.bits) ? a : b; }
INLINE vub where(vm m, vub a, vub b) { return narrowed<vb>(m.bits) ? a : b; }
INLINE vm where(vm m, vm a, vm b) { return {m.bits ? a.bits : b.bits}; }
INLINE vdd where(vm m, vdd a, vdd b) { vqq w = widen(m.bits); return {w.a ? a.a : b.a, w.b ? a.b : b.b}; }
INLINE vqq where(vm m, vqq a, vqq b) { vqq w = widen(m.bits); return {w.a ? a.a : b.a, w.b ? a.b : b.b}; }
INLINE vbf where(vm m, vbf a, vbf b) { return {narrowed<vs>(m.bits) ? a.bits : b.bits}; }
INLINE vhf where(vm m, vhf a, vhf b) { return {narrowed<vs>(m.bits) ? a.bits : b.bits}; }
template <class H, class V> INLINE two<V> where(two<H> m, two<V> a, two<V> b) { return {where(m.a, a.a, b.a), where(m.b, a.b, b.b)}; }
template <class T> INLINE T where(bool m, T a, T b) { return m ? a : b; }

// ---- any lane true ----
#if HAVE_AVX512
INLINE u16 bitmask(vm m) { return __builtin_ia32_cvtd2mask512(m.bits); }
INLINE bool any(vm m) { return bitmask(m) != 0; }
#elif HAVE_AVX2
INLINE bool any(vm m) { return __builtin_ia32_movmskps256((vf)m.bits) != 0; }
#elif HAVE_NEON
INLINE f32 largest(vm m) { NEON1("umaxv %s0, %1.4s", f32, m.bits) }
INLINE bool any(vm m) { return __builtin_bit_cast(u32, largest(m)) != 0; }
#else
INLINE bool any(vm m) { int r = 0; for (int i = 0; i < LANES; i++) r |= m.bits[i]; return r != 0; }
#endif
template <class H> INLINE bool any(two<H> m) { return any(m.a) | any(m.b); }
INLINE bool any(bool m) { return m; }
