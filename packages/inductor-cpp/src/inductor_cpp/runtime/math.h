// Elementary functions. float32 vectors have own minimax polynomials (fitted in float64, coefficients rounded one by one) with the
// bounds that tests/test_math.py checks; the other functions, float64 and machines without fused multiply-add call libm per lane.
#define LIBM(X) X(exp) X(expm1) X(log) X(log2) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(erf) X(lgamma)
#define LIBM2(X) X(pow) X(atan2)
#define DECLARE(g) extern "C" f32 g##f(f32); extern "C" f64 g(f64); INLINE f32 g##_of(f32 x) { return g##f(x); } INLINE f64 g##_of(f64 x) { return g(x); }
#define DECLARE2(g) extern "C" f32 g##f(f32, f32); extern "C" f64 g(f64, f64); \
  INLINE f32 g##_of(f32 x, f32 y) { return g##f(x, y); } INLINE f64 g##_of(f64 x, f64 y) { return g(x, y); }
LIBM(DECLARE) LIBM2(DECLARE2)
#define COLD __attribute__((noinline)) static
#define LANEWISE_F32(g) COLD vf g##_lanes(vf x) { for (int i = 0; i < LANES; i++) x[i] = g##f(x[i]); return x; }
#define LANEWISE_F64(g) COLD vd g##_lanes(vd x) { for (int i = 0; i < LANES / 2; i++) x[i] = g(x[i]); return x; } \
  INLINE vdd g##_of(vdd x) { return {g##_lanes(x.a), g##_lanes(x.b)}; }
LIBM(LANEWISE_F32) LIBM(LANEWISE_F64)
#define LANEWISE2(g) \
  COLD vf g##_of(vf x, vf y) { for (int i = 0; i < LANES; i++) x[i] = g##f(x[i], y[i]); return x; } \
  COLD vd g##_lanes(vd x, vd y) { for (int i = 0; i < LANES / 2; i++) x[i] = g(x[i], y[i]); return x; } \
  INLINE vdd g##_of(vdd x, vdd y) { return {g##_lanes(x.a, y.a), g##_lanes(x.b, y.b)}; }
LIBM2(LANEWISE2)
#define THROUGH_LIBM(f) INLINE vf f##_of(vf x) { return f##_lanes(x); }
THROUGH_LIBM(tan) THROUGH_LIBM(asin) THROUGH_LIBM(acos) THROUGH_LIBM(atan) THROUGH_LIBM(sinh) THROUGH_LIBM(cosh) THROUGH_LIBM(lgamma) THROUGH_LIBM(log2)

#if HAVE_AVX512 || HAVE_AVX2 || HAVE_NEON
INLINE vf all(f32 x) { return x - vf{}; }
#if HAVE_AVX512
INLINE vf scale(vf x, vf n) { return __builtin_ia32_scalefps512_mask(x, n, x, -1, 4); }                // x * 2**n
INLINE vf exponent(vf x) { return __builtin_ia32_getexpps512_mask(x, x, -1, 4); }
INLINE vf mantissa(vf x) { return __builtin_ia32_getmantps512_mask(x, 11, x, -1, 4); }                // in [0.75, 1.5)
#else
INLINE vf scale(vf x, vf n) {                                                                            // |n| <= 252, in two steps
  vi k = CONVERT(n, vi), h = k >> 1;
  return x * (vf)((h + 127) << 23) * (vf)((k - h + 127) << 23);
}
INLINE vf normal(vf x) { return x < 0x1p-126f ? x * 0x1p64f : x; }
INLINE vf mantissa(vf x) { vf m = (vf)(((vi)normal(x) & 0x7fffff) | 0x3f800000); return m >= 1.5f ? m * 0.5f : m; }
INLINE vf exponent(vf x) { return CONVERT((vi)(((vu)normal(x) >> 23) & 255) - 127, vf) - (x < 0x1p-126f ? all(64.f) : all(0.f)); }
#endif
template <class... C> INLINE vf polynomial(vf x, f32 highest, C... rest) {
  vf p = all(highest);
  ((p = fma(p, x, all(rest))), ...);
  return p;
}
struct reduced { vf r, n; };
INLINE reduced reduce_exp(vf x) {                        // x = n ln2 + r
  vf n = nearest(x * 1.44269504f);
  return {fma(n, all(1.9046542e-9f), fma(n, all(-0.693147182f), x)), n};
}
// e**r - 1 on |r| <= 0.35
INLINE vf expm1_core(vf r) { return fma(polynomial(r, 0.0013820742f, 0.008369248f, 0.04166828f, 0.16666517f, 0.49999994f), r * r, r); }
INLINE vf exp_of(vf x) {
  x = max_second(all(-104.f), min_second(all(89.f), x));   // the operand order keeps NaN
  reduced s = reduce_exp(x);
  return scale(expm1_core(s.r) + 1.f, s.n);
}
INLINE vf expm1_of(vf x) {
  vf c = max_second(all(-20.f), min_second(all(89.f), x));
  reduced s = reduce_exp(c);
  vf p = expm1_core(s.r), k = scale(all(1.f), min_second(s.n, all(127.f)));
  vf big = scale(p + 1.f, s.n);
  vf r = s.n == 0.f ? p : fma(p, k, k - 1.f);
  r = x == 0.f ? x : r;
  return x > 80.f ? big : r;
}
// ln(1 + f) with 1 + f in [0.75, 1.5), plus e ln2
INLINE vf log_core(vf f, vf e) {
  vf z = f * f;
  vf p = polynomial(f, -0.04515227f, 0.10472551f, -0.13163936f, 0.1447763f, -0.16646878f, 0.19990848f, -0.2500011f, 0.3333345f);
  vf r = f + fma(e, all(-2.12194440e-4f), fma(p, f * z, -0.5f * z));
  return fma(e, all(0.693359375f), r);
}
INLINE vf log_of(vf x) {
  vf m = mantissa(x), e = exponent(x) - exponent(m);
  vf r = log_core(m - 1.f, e);
  r = x == __builtin_inff() ? x : r;
  r = x == 0.f ? all(-__builtin_inff()) : r;
  return x < 0.f ? all(__builtin_nanf("")) : x != x ? x : r;
}
INLINE vf log1p_of(vf x) {
  vf u = x + 1.f, m = mantissa(u), e = exponent(u) - exponent(m);
  vf lost = u >= 1.f ? (x - (u - 1.f)) : 1.f - (u - x);        // what the addition rounded away; u = 2**e m
  vf r = log_core(m - 1.f, e) + lost / u;
  vf z = x * x;
  vf near = x + fma(polynomial(x, -0.04515227f, 0.10472551f, -0.13163936f, 0.1447763f, -0.16646878f, 0.19990848f, -0.2500011f, 0.3333345f), x * z, -0.5f * z);
  r = (x > -0.25f) & (x < 0.5f) ? near : r;
  r = x == 0.f ? x : r;
  r = x == __builtin_inff() ? x : r;
  r = x == -1.f ? all(-__builtin_inff()) : r;
  return x < -1.f ? all(__builtin_nanf("")) : x != x ? x : r;
}
// 2**y - 1 for -120 <= y <= 0, with a small relative error near 0 as well
INLINE vf exp2m1(vf y) {
  vf n = nearest(y), r = y - n, k = scale(all(1.f), n);
  vf p = r * polynomial(r, 0.00015386572340503335f, 0.0013389505911618471f, 0.0096183056011796f, 0.055503640323877335f, 0.24022649228572845f, 0.6931471824645996f);
  return fma(p, k, k - 1.f);
}
INLINE vf tanh_of(vf x) {                                // with e = exp(-2|x|) - 1
  vf e = exp2m1(min_second(all(10.f), abs_of(x)) * -2.8853900817779268f);
  return with_sign(e / (e + 2.f), x);
}
INLINE vf erf_of(vf x) {                                 // 1 - 2**-q(|x|)
  vf a = min_second(all(4.f), abs_of(x));
  vf q = a * polynomial(a, -5.9753238019766286e-05f, 0.0005573401576839387f, -0.0018281028605997562f, -0.00026522204279899597f,
    0.02785228192806244f, -0.14832158386707306f, -0.9184446930885315f, -1.6279070377349854f);
  return with_sign(exp2m1(q), x);
}
INLINE vf sine_core(vf x, bool cosine) {                    // |x| <= 1e4; one polynomial on [-pi/2, pi/2]
  vf k = nearest(cosine ? fma(x, all(0.318309886f), all(0.5f)) : x * 0.318309886f), n = cosine ? k - 0.5f : k;
  vf r = fma(n, all(3.4302492e-15f), fma(n, all(8.74227766e-8f), fma(n, all(-3.14159274f), x)));
  vf z = r * r;
  vf p = fma(polynomial(z, 2.6051475e-06f, -0.00019809442f, 0.0083330665f, -0.1666666f) * z, r, r);
  return (vf)((vi)p ^ (CONVERT(k, vi) << 31));
}
INLINE bool any_large(vf x) { return any(vm{~(abs_of(x) < 1e4f)}); }
INLINE vf sin_of(vf x) { return __builtin_expect(any_large(x), 0) ? sin_lanes(x) : x == 0.f ? x : sine_core(x, false); }
INLINE vf cos_of(vf x) { return __builtin_expect(any_large(x), 0) ? cos_lanes(x) : sine_core(x, true); }
#else
THROUGH_LIBM(exp) THROUGH_LIBM(expm1) THROUGH_LIBM(log) THROUGH_LIBM(log1p) THROUGH_LIBM(tanh) THROUGH_LIBM(erf) THROUGH_LIBM(sin) THROUGH_LIBM(cos)
#endif
#define LIFTED(f) LIFT1(f##_of)
#define LIFTED2(f) LIFT2(f##_of)
LIBM(LIFTED) LIBM2(LIFTED2)
