// Operations on numbers whose result is exact or correctly rounded.
extern "C" {
f32 sqrtf(f32); f32 floorf(f32); f32 ceilf(f32); f32 truncf(f32); f32 rintf(f32); f32 fmodf(f32, f32);
f64 sqrt(f64); f64 floor(f64); f64 ceil(f64); f64 trunc(f64); f64 rint(f64); f64 fmod(f64, f64);
}
#define LEAVES(X) X(vf) X(vi) X(vs) X(vb) X(vub)
#define EACH_LANE(V, expr) V r; for (int i = 0; i < (int)(sizeof(V) / sizeof(x[0])); i++) r[i] = expr; return r;

INLINE vdd operator/(vdd x, vdd y) { return {x.a / y.a, x.b / y.b}; }
template <class H> INLINE two<H> operator/(two<H> x, two<H> y) { return {x.a / y.a, x.b / y.b}; }
template <class H> INLINE two<H> operator<<(two<H> x, two<H> y) { return {x.a << y.a, x.b << y.b}; }
template <class H> INLINE two<H> operator>>(two<H> x, two<H> y) { return {x.a >> y.a, x.b >> y.b}; }

// ---- rounding and square root ----
#if HAVE_AVX512
INLINE vf fma(vf a, vf b, vf c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); }
INLINE vf root(vf x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
INLINE vd root(vd x) { return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4); }
#define ROUNDING(f, mode, scalar) INLINE vf f(vf x) { return __builtin_ia32_rndscaleps_mask(x, mode, x, -1, 4); } \
  INLINE vd f(vd x) { return __builtin_ia32_rndscalepd_mask(x, mode, x, -1, 4); }
INLINE vf min_second(vf a, vf b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }   // b when either is NaN
INLINE vf max_second(vf a, vf b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
#elif HAVE_AVX2
INLINE vf fma(vf a, vf b, vf c) { return __builtin_ia32_vfmaddps256(a, b, c); }
INLINE vf root(vf x) { return __builtin_ia32_sqrtps256(x); }
INLINE vd root(vd x) { return __builtin_ia32_sqrtpd256(x); }
#define ROUNDING(f, mode, scalar) INLINE vf f(vf x) { return __builtin_ia32_roundps256(x, mode); } \
  INLINE vd f(vd x) { return __builtin_ia32_roundpd256(x, mode); }
INLINE vf min_second(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
INLINE vf max_second(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
#elif HAVE_NEON
INLINE vf fma(vf a, vf b, vf c) { asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b)); return c; }
INLINE vf root(vf x) { NEON1("fsqrt %0.4s, %1.4s", vf, x) }
INLINE vd root(vd x) { NEON1("fsqrt %0.2d, %1.2d", vd, x) }
#define rint_NEON "frintn"
#define floor_NEON "frintm"
#define ceil_NEON "frintp"
#define trunc_NEON "frintz"
#define ROUNDING(name, mode, scalar) INLINE vf name(vf x) { NEON1(scalar##_NEON " %0.4s, %1.4s", vf, x) } \
  INLINE vd name(vd x) { NEON1(scalar##_NEON " %0.2d, %1.2d", vd, x) }
INLINE vf min_second(vf a, vf b) { return a < b ? a : b; }
INLINE vf max_second(vf a, vf b) { return a > b ? a : b; }
#else
INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf root(vf x) { EACH_LANE(vf, sqrtf(x[i])) }
INLINE vd root(vd x) { EACH_LANE(vd, sqrt(x[i])) }
#define ROUNDING(name, mode, scalar) INLINE vf name(vf x) { EACH_LANE(vf, scalar##f(x[i])) } INLINE vd name(vd x) { EACH_LANE(vd, scalar(x[i])) }
INLINE vf min_second(vf a, vf b) { return a < b ? a : b; }
INLINE vf max_second(vf a, vf b) { return a > b ? a : b; }
#endif
ROUNDING(nearest, 8, rint) ROUNDING(downward, 9, floor) ROUNDING(upward, 10, ceil) ROUNDING(towards_zero, 11, trunc)
#define NAMED(name, leaf, scalar) \
  INLINE vf name##_of(vf x) { return leaf(x); } INLINE vdd name##_of(vdd x) { return {leaf(x.a), leaf(x.b)}; } \
  INLINE f32 name##_of(f32 x) { return scalar##f(x); } INLINE f64 name##_of(f64 x) { return scalar(x); } LIFT1(name##_of)
NAMED(sqrt, root, sqrt) NAMED(round, nearest, rint) NAMED(floor, downward, floor) NAMED(ceil, upward, ceil) NAMED(trunc, towards_zero, trunc)
INLINE vf rsqrt_of(vf x) { return 1.f / root(x); }
INLINE vdd rsqrt_of(vdd x) { return {1. / root(x.a), 1. / root(x.b)}; }
INLINE f32 rsqrt_of(f32 x) { return 1.f / sqrtf(x); }
INLINE f64 rsqrt_of(f64 x) { return 1. / sqrt(x); }
LIFT1(rsqrt_of)

// ---- quotients by a number: vectors divide at a tenth of the speed of multiplying ----
#if HAVE_AVX512 || HAVE_AVX2 || HAVE_NEON
INLINE vf over(vf x, f32 d) {      // by the reciprocal, then corrected by what is left: rounded as a division is (Markstein)
  if (__builtin_expect((((__builtin_bit_cast(u32, d) >> 23) & 255) - 27) > 200, 0)) return x / (d - vf{});   // 2**-100 .. 2**100
  vf r = 1.f / d - vf{}, q = x * r, left = fma(-q, d - vf{}, x), size = (vf)((vi)left & 0x7fffffff);
  return (size > 0.f) & (size < __builtin_inff()) ? fma(left, r, q) : q;          // zeros, infinities and NaN are right already
}
#else
INLINE vf over(vf x, f32 d) { return x / (d - vf{}); }
#endif
template <class H> INLINE two<H> over(two<H> x, f32 d) { return {over(x.a, d), over(x.b, d)}; }

// ---- sign and magnitude ----
INLINE vf abs_of(vf x) { return (vf)((vi)x & 0x7fffffff); }
INLINE vdd abs_of(vdd x) { const i64 m = 0x7fffffffffffffffll; return {(vd)((vq)x.a & m), (vd)((vq)x.b & m)}; }
INLINE vf with_sign(vf x, vf s) { return (vf)(((vi)x & 0x7fffffff) | ((vi)s & (i32)0x80000000)); }
#define ABS_INT(V) INLINE V abs_of(V x) { return x < 0 ? -x : x; }
ABS_INT(vi) ABS_INT(vs) ABS_INT(vb)
INLINE vub abs_of(vub x) { return x; }
INLINE vqq abs_of(vqq x) { return {x.a < 0 ? -x.a : x.a, x.b < 0 ? -x.b : x.b}; }
template <class T> INLINE T scalar_abs(T x) { return x < 0 ? (T)-x : x; }
INLINE f32 abs_of(f32 x) { return __builtin_fabsf(x); }
INLINE f64 abs_of(f64 x) { return __builtin_fabs(x); }
INLINE i64 abs_of(i64 x) { return scalar_abs(x); }
INLINE i32 abs_of(i32 x) { return scalar_abs(x); }
INLINE i16 abs_of(i16 x) { return scalar_abs(x); }
INLINE i8 abs_of(i8 x) { return scalar_abs(x); }
INLINE u8 abs_of(u8 x) { return x; }
LIFT1(abs_of)

// ---- minimum and maximum: NaN wins, of equal ones the first, so that limits keep the sign of -0 as eager's do ----
#if HAVE_NEON
INLINE vf minimum(vf a, vf b) { NEON2("fmin %0.4s, %1.4s, %2.4s", vf, a, b) }
INLINE vf maximum(vf a, vf b) { NEON2("fmax %0.4s, %1.4s, %2.4s", vf, a, b) }
#else
INLINE vf minimum(vf a, vf b) { vf m = min_second(b, a); return b != b ? b : m; }
INLINE vf maximum(vf a, vf b) { vf m = max_second(b, a); return b != b ? b : m; }
#endif
INLINE vd min_leaf(vd a, vd b) { return ((b < a) | (b != b)) ? b : a; }
INLINE vd max_leaf(vd a, vd b) { return ((b > a) | (b != b)) ? b : a; }
INLINE vdd minimum(vdd a, vdd b) { return {min_leaf(a.a, b.a), min_leaf(a.b, b.b)}; }
INLINE vdd maximum(vdd a, vdd b) { return {max_leaf(a.a, b.a), max_leaf(a.b, b.b)}; }
#define EXTREMES(V) INLINE V minimum(V a, V b) { return a < b ? a : b; } INLINE V maximum(V a, V b) { return a > b ? a : b; }
EXTREMES(vi) EXTREMES(vs) EXTREMES(vb) EXTREMES(vub) EXTREMES(i64) EXTREMES(i32) EXTREMES(i16) EXTREMES(i8) EXTREMES(u8)
INLINE vm minimum(vm a, vm b) { return a & b; }
INLINE vm maximum(vm a, vm b) { return a | b; }
INLINE bool minimum(bool a, bool b) { return a & b; }
INLINE bool maximum(bool a, bool b) { return a | b; }
INLINE vqq minimum(vqq a, vqq b) { return {a.a < b.a ? a.a : b.a, a.b < b.b ? a.b : b.b}; }
INLINE vqq maximum(vqq a, vqq b) { return {a.a > b.a ? a.a : b.a, a.b > b.b ? a.b : b.b}; }
#define FLOAT_EXTREMES(T) INLINE T minimum(T a, T b) { return b < a || b != b ? b : a; } INLINE T maximum(T a, T b) { return b > a || b != b ? b : a; }
FLOAT_EXTREMES(f32) FLOAT_EXTREMES(f64)
LIFT2(minimum) LIFT2(maximum)

// ---- division of integers and its remainders; division by zero gives 0 and never traps ----
template <class T> INLINE T quotient(T a, T b) { return b == 0 ? (T)0 : b == (T)-1 && (T)-1 < 0 ? (T)-a : (T)(a / b); }
template <class T> INLINE T floor_quotient(T a, T b) { T q = quotient(a, b); return (T)(a - q * b) != 0 && ((a < 0) != (b < 0)) ? (T)(q - 1) : q; }
template <class T> INLINE T remainder_of(T a, T b) { return b == 0 ? (T)0 : (T)(a - floor_quotient(a, b) * b); }
template <class T> INLINE T fmod_of(T a, T b) { return b == 0 ? (T)0 : (T)(a - quotient(a, b) * b); }
template <class T> INLINE T floordiv(T a, T b) { return floor_quotient(a, b); }
INLINE f32 fmod_of(f32 a, f32 b) { return fmodf(a, b); }
INLINE f64 fmod_of(f64 a, f64 b) { return fmod(a, b); }
template <class T> INLINE T float_remainder(T a, T b) { T m = fmod_of(a, b); return m != 0 && ((m < 0) != (b < 0)) ? m + b : m; }
INLINE f32 remainder_of(f32 a, f32 b) { return float_remainder(a, b); }
INLINE f64 remainder_of(f64 a, f64 b) { return float_remainder(a, b); }
// Shifts by at least the width, or by a negative count, give 0 (right shift: the sign), as ATen's do.
template <class T> INLINE T lshift(T a, T b) { return b < 0 || b >= (T)(sizeof(T) * 8) ? (T)0 : (T)(a << b); }
template <class T> INLINE T rshift(T a, T b) { T most = sizeof(T) * 8 - ((T)-1 < 0); return (T)(a >> (b < 0 || b > most ? most : b)); }
#define LANE_BY_LANE(f, V) INLINE V f(V x, V y) { V r; for (int i = 0; i < LANES; i++) r[i] = f(x[i], y[i]); return r; }
#define WIDE_LANE_BY_LANE(f, W) INLINE W f(W x, W y) { W r; \
  for (int i = 0; i < LANES / 2; i++) { r.a[i] = f(x.a[i], y.a[i]); r.b[i] = f(x.b[i], y.b[i]); } return r; }
#define INTEGER_LANES(f) LANE_BY_LANE(f, vi) LANE_BY_LANE(f, vs) LANE_BY_LANE(f, vb) LANE_BY_LANE(f, vub) WIDE_LANE_BY_LANE(f, vqq)
INTEGER_LANES(floordiv) INTEGER_LANES(remainder_of) INTEGER_LANES(fmod_of) INTEGER_LANES(lshift) INTEGER_LANES(rshift)
#define FLOAT_LANES(f) LANE_BY_LANE(f, vf) WIDE_LANE_BY_LANE(f, vdd)
FLOAT_LANES(remainder_of) FLOAT_LANES(fmod_of)
LIFT2(floordiv) LIFT2(remainder_of) LIFT2(fmod_of) LIFT2(lshift) LIFT2(rshift)

// ---- index arithmetic with Python's meaning ----
INLINE i64 index_div(i64 a, i64 b) { i64 q = a / b; return q * b != a && ((a < 0) != (b < 0)) ? q - 1 : q; }
INLINE i64 index_mod(i64 a, i64 b) { return a - index_div(a, b) * b; }
INLINE i64 index_min(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 index_max(i64 a, i64 b) { return a > b ? a : b; }
