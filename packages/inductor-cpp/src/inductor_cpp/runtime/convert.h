// Conversions by ATen's rules: float to integer truncates (through int32 or int64, so that narrower ones wrap), anything to bool is != 0.
INLINE vf raise(vbf x) { return (vf)(widened(x.bits) << 16); }
typedef VECTOR(u16, 2 * LANES) both_halves;                  // two registers of bfloat16 as one
#if HAVE_AVX512 && defined(__AVX512VBMI__)
typedef VECTOR(char, 64) bytes64;
#define UP(k) 0, 0, 2 * (k), 2 * (k) + 1
#define UP8(k) UP(k), UP(k + 1), UP(k + 2), UP(k + 3), UP(k + 4), UP(k + 5), UP(k + 6), UP(k + 7)
INLINE vf raise_lanes(both_halves x, bytes64 places) {       // zeros below two bytes of each: one instruction for widening and shift
  return (vf)__builtin_ia32_permvarqi512_mask((bytes64)x, places, bytes64{}, 0xccccccccccccccccull);
}
INLINE two<vf> raise(both_halves x) {
  return {raise_lanes(x, bytes64{UP8(0), UP8(8)}), raise_lanes(x, bytes64{UP8(16), UP8(24)})};
}
#endif
INLINE f32 raise(bf16 x) { return __builtin_bit_cast(f32, (u32)x.bits << 16); }
INLINE vu bf16_bits(vf x) {                                  // to nearest even; a NaN stays one
  vu u = (vu)x, r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (x != x) ? (vu)(vi{} + 0x7fc0) : r;
}
INLINE vbf round_bf16(vf x) { return {CONVERT(bf16_bits(x), vh)}; }
#if HAVE_AVX512 && defined(__AVX512BF16__)
#define HAVE_PACKED_BF16 1
#if __has_builtin(__builtin_ia32_cvtne2ps2bf16_v32bf)        // gcc 13 has it by another name
#define TWO_TO_BF16 __builtin_ia32_cvtne2ps2bf16_v32bf
#else
#define TWO_TO_BF16 __builtin_ia32_cvtne2ps2bf16_v32hi
#endif
__attribute__((noinline, cold)) static vbf round_denormals(vf x) { return round_bf16(x); }
INLINE vbf to_bf16(vf x) {                                   // the instruction flushes denormals, which are rare
  if (__builtin_expect(__builtin_ia32_fpclassps512_mask(x, 0x20, -1) != 0, 0)) return round_denormals(x);
  return {(vh)__builtin_ia32_cvtneps2bf16_v16sf(x)};
}
#define UPPER_LANES 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
__attribute__((noinline, cold)) static both_halves round_denormals(vf a, vf b) {
  return __builtin_shufflevector(round_bf16(a).bits, round_bf16(b).bits, ALL_LANES, UPPER_LANES);
}
INLINE both_halves packed_bf16(two<vf> x) {
  u16 a = __builtin_ia32_fpclassps512_mask(x.a, 0x20, -1), b = __builtin_ia32_fpclassps512_mask(x.b, 0x20, -1);
  if (__builtin_expect(!__builtin_ia32_kortestzhi(a, b), 0)) return round_denormals(x.a, x.b);
  return (both_halves)TWO_TO_BF16(x.b, x.a);
}
INLINE two<vbf> to_bf16(two<vf> x) {
  both_halves r = packed_bf16(x);
  return {{__builtin_shufflevector(r, r, ALL_LANES)}, {__builtin_shufflevector(r, r, UPPER_LANES)}};
}
#elif HAVE_NEON && defined(__ARM_FEATURE_BF16)
#define HAVE_PACKED_BF16 1
INLINE vbf to_bf16(vf x) { vh r; asm("bfcvtn %0.4h, %1.4s" : "=w"(r) : "w"(x)); return {r}; }
INLINE both_halves packed_bf16(two<vf> x) {
  both_halves r;
  asm("bfcvtn %0.4h, %1.4s\n\tbfcvtn2 %0.8h, %2.4s" : "=&w"(r) : "w"(x.a), "w"(x.b));
  return r;
}
#else
INLINE vbf to_bf16(vf x) { return round_bf16(x); }
#if HAVE_AVX2
#define HAVE_PACKED_BF16 1
INLINE both_halves packed_bf16(two<vf> x) {                  // packing works on halves of registers, the permutation joins them
  return (both_halves)__builtin_ia32_permdi256((vq)__builtin_ia32_packusdw256((vi)bf16_bits(x.a), (vi)bf16_bits(x.b)), 0xd8);
}
#endif
#endif
INLINE vf rounded(tag<bf16>, vf x) {                         // to bf16 and back
  vu u = (vu)x, r = (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
#if HAVE_AVX512
  return __builtin_ia32_fixupimmps512_mask((vf)r, x, vi{} + 0x22, 0, -1, 4);   // a NaN of x, quiet, else r
#else
  return (x != x) ? (vf)(vi{} + 0x7fc00000) : (vf)r;
#endif
}
#if HAVE_AVX512 && defined(__AVX512BF16__) && defined(__AVX512VBMI__)
INLINE two<vf> rounded(tag<bf16>, two<vf> x) { return raise(packed_bf16(x)); }
#endif
INLINE bf16 to_bf16(f32 x) {
  u32 u = __builtin_bit_cast(u32, x);
  return {x != x ? (u16)0x7fc0 : (u16)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
INLINE f32 raise(f16 x) {
  u32 sign = (u32)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return __builtin_bit_cast(f32, sign | 0x7f800000u | (rest & 0x3ff) << 13);
  f32 magnitude = __builtin_bit_cast(f32, rest << 13) * 0x1p112f;   // also exact for subnormals
  return __builtin_bit_cast(f32, sign | __builtin_bit_cast(u32, magnitude));
}
INLINE f16 to_f16(f32 x) {
  u32 u = __builtin_bit_cast(u32, x), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffff;
  if (rest > 0x7f800000) return {(u16)(sign | 0x7e00)};
  if (rest >= 0x477ff000) return {(u16)(sign | 0x7c00)};             // rounds to at least 65520
  if (rest < 0x38800000)                                              // subnormal: the addition rounds
    return {(u16)(sign | (__builtin_bit_cast(u32, __builtin_bit_cast(f32, rest) + 0.5f) - 0x3f000000u))};
  return {(u16)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1)) >> 13))};
}
#if HAVE_AVX512
INLINE vf raise(vhf x) { return __builtin_ia32_vcvtph2ps512_mask((VECTOR(i16, 16))x.bits, vf{}, -1, 4); }
INLINE vhf to_f16(vf x) { return {(vh)__builtin_ia32_vcvtps2ph512_mask(x, 0, (VECTOR(i16, 16)){}, -1)}; }
#elif HAVE_AVX2 && defined(__F16C__)
INLINE vf raise(vhf x) { return __builtin_ia32_vcvtph2ps256((VECTOR(i16, 8))x.bits); }
INLINE vhf to_f16(vf x) { return {(vh)__builtin_ia32_vcvtps2ph256(x, 0)}; }
#elif HAVE_NEON
INLINE vf raise(vhf x) { NEON1("fcvtl %0.4s, %1.4h", vf, x.bits) }
INLINE vh half_bits(vf x) { NEON1("fcvtn %0.4h, %1.4s", vh, x) }
INLINE vhf to_f16(vf x) { return {half_bits(x)}; }
#else
INLINE vf raise(vhf x) { vf r; for (int i = 0; i < LANES; i++) r[i] = raise(f16{x.bits[i]}); return r; }
INLINE vhf to_f16(vf x) { vhf r; for (int i = 0; i < LANES; i++) r.bits[i] = to_f16(x[i]).bits; return r; }
#endif

INLINE vi as_int(vm x) { return x.bits & 1; }
// Every pair of leaf types: 4-byte and shorter types convert directly or through int32, 8-byte ones half by half.
#define SHORT_TO(V, T) \
  INLINE V to(tag<T>, vi x) { return narrowed<V>(x); } INLINE V to(tag<T>, vs x) { return CONVERT(x, V); } \
  INLINE V to(tag<T>, vb x) { return CONVERT(x, V); } INLINE V to(tag<T>, vub x) { return CONVERT(x, V); } \
  INLINE V to(tag<T>, vm x) { return narrowed<V>(as_int(x)); } INLINE V to(tag<T>, vqq x) { return narrowed<V>(narrow(x)); }
#define FROM_SHORT(f) \
  INLINE vi to(tag<i32>, vi x) { return x; } INLINE vi to(tag<i32>, vs x) { return f(x); } INLINE vi to(tag<i32>, vb x) { return f(x); } \
  INLINE vi to(tag<i32>, vub x) { return f(x); } INLINE vi to(tag<i32>, vm x) { return as_int(x); } INLINE vi to(tag<i32>, vqq x) { return narrow(x); }
FROM_SHORT(widened) SHORT_TO(vs, i16) SHORT_TO(vb, i8) SHORT_TO(vub, u8)
#define FLOAT_TO(V, T) \
  INLINE V to(tag<T>, vf x) { return narrowed<V>(CONVERT(x, vi)); } \
  INLINE V to(tag<T>, vdd x) { return narrowed<V>(join(CONVERT(x.a, half_i), CONVERT(x.b, half_i))); }
FLOAT_TO(vi, i32) FLOAT_TO(vs, i16) FLOAT_TO(vb, i8) FLOAT_TO(vub, u8)
INLINE vf to(tag<f32>, vf x) { return x; }
INLINE vf to(tag<f32>, vi x) { return CONVERT(x, vf); }
INLINE vf to(tag<f32>, vm x) { return CONVERT(as_int(x), vf); }
INLINE vf to(tag<f32>, vs x) { return CONVERT(widened(x), vf); }
INLINE vf to(tag<f32>, vb x) { return CONVERT(widened(x), vf); }
INLINE vf to(tag<f32>, vub x) { return CONVERT(widened(x), vf); }
INLINE vf to(tag<f32>, vdd x) { return join(CONVERT(x.a, half_f), CONVERT(x.b, half_f)); }
INLINE vf to(tag<f32>, vqq x) { return join(CONVERT(x.a, half_f), CONVERT(x.b, half_f)); }
INLINE vf to(tag<f32>, vbf x) { return raise(x); }
INLINE vf to(tag<f32>, vhf x) { return raise(x); }
INLINE vdd to(tag<f64>, vf x) { return {widened(low_half(x)), widened(high_half(x))}; }
INLINE vdd to(tag<f64>, vi x) { return {CONVERT(low_half(x), vd), CONVERT(high_half(x), vd)}; }
INLINE vdd to(tag<f64>, vdd x) { return x; }
INLINE vdd to(tag<f64>, vqq x) { return {CONVERT(x.a, vd), CONVERT(x.b, vd)}; }
INLINE vqq to(tag<i64>, vf x) { return {truncated(low_half(x)), truncated(high_half(x))}; }
INLINE vqq to(tag<i64>, vi x) { return widen(x); }
INLINE vqq to(tag<i64>, vdd x) { return {CONVERT(x.a, vq), CONVERT(x.b, vq)}; }
INLINE vqq to(tag<i64>, vqq x) { return x; }
INLINE vm to(tag<bool>, vm x) { return x; }
#define THROUGH(T, V, first) INLINE auto to(tag<T>, V x) { return to(tag<T>{}, first); }
#define THROUGH_INT(T) THROUGH(T, vs, widened(x)) THROUGH(T, vb, widened(x)) THROUGH(T, vub, widened(x)) THROUGH(T, vm, as_int(x))
THROUGH_INT(f64) THROUGH_INT(i64)
#define THROUGH_FLOAT(T) THROUGH(T, vbf, raise(x)) THROUGH(T, vhf, raise(x))
THROUGH_FLOAT(f64) THROUGH_FLOAT(i64) THROUGH_FLOAT(i32) THROUGH_FLOAT(i16) THROUGH_FLOAT(i8) THROUGH_FLOAT(u8)
#define IS_TRUE(V) INLINE vm to(tag<bool>, V x) { return ne(x, V{}); }
IS_TRUE(vf) IS_TRUE(vi) IS_TRUE(vs) IS_TRUE(vb) IS_TRUE(vub) IS_TRUE(vdd) IS_TRUE(vqq)
THROUGH_FLOAT(bool)
#define TO_HALF(V) \
  INLINE vbf to(tag<bf16>, V x) { return to_bf16(to(tag<f32>{}, x)); } INLINE vhf to(tag<f16>, V x) { return to_f16(to(tag<f32>{}, x)); }
TO_HALF(vf) TO_HALF(vi) TO_HALF(vs) TO_HALF(vb) TO_HALF(vub) TO_HALF(vdd) TO_HALF(vqq) TO_HALF(vm)
INLINE vbf to(tag<bf16>, vhf x) { return to_bf16(raise(x)); }
INLINE vhf to(tag<f16>, vbf x) { return to_f16(raise(x)); }
INLINE vbf to(tag<bf16>, vbf x) { return x; }
INLINE vhf to(tag<f16>, vhf x) { return x; }
template <class T, class H> INLINE auto to(tag<T> t, two<two<H>> x) { return pair(to(t, x.a), to(t, x.b)); }
#define PAIRS_OF(V) template <class T> INLINE auto to(tag<T> t, two<V> x) { return pair(to(t, x.a), to(t, x.b)); }
#if HAVE_AVX512 && defined(__AVX512BF16__)
INLINE two<vbf> to(tag<bf16>, two<vf> x) { return to_bf16(x); }
#endif
PAIRS_OF(vf) PAIRS_OF(vi) PAIRS_OF(vs) PAIRS_OF(vb) PAIRS_OF(vub) PAIRS_OF(vm) PAIRS_OF(vbf) PAIRS_OF(vhf)

#define SCALAR_TO(S) \
  INLINE f32 to(tag<f32>, S x) { return (f32)x; } INLINE f64 to(tag<f64>, S x) { return (f64)x; } INLINE bool to(tag<bool>, S x) { return x != 0; } \
  INLINE i64 to(tag<i64>, S x) { return (i64)x; } INLINE i32 to(tag<i32>, S x) { return (i32)x; } INLINE i16 to(tag<i16>, S x) { return (i16)(i32)x; } \
  INLINE i8 to(tag<i8>, S x) { return (i8)(i32)x; } INLINE u8 to(tag<u8>, S x) { return (u8)(i32)x; } \
  INLINE bf16 to(tag<bf16>, S x) { return to_bf16((f32)x); } INLINE f16 to(tag<f16>, S x) { return to_f16((f32)x); }
SCALAR_TO(f32) SCALAR_TO(f64) SCALAR_TO(i64) SCALAR_TO(i32) SCALAR_TO(i16) SCALAR_TO(i8) SCALAR_TO(u8) SCALAR_TO(bool)
template <class T> INLINE T to(tag<T> t, bf16 x) { return to(t, raise(x)); }
template <class T> INLINE T to(tag<T> t, f16 x) { return to(t, raise(x)); }
INLINE bf16 to(tag<bf16>, bf16 x) { return x; }
INLINE f16 to(tag<f16>, f16 x) { return x; }
template <class T, class V> INLINE auto cast(V x) { return to(tag<T>{}, x); }
template <class T, class H> INLINE two<H> rounded(tag<T> t, two<H> x) { return {rounded(t, x.a), rounded(t, x.b)}; }

#define COMPARE_HALF(f) \
  INLINE vm f(vbf x, vbf y) { return f(raise(x), raise(y)); } INLINE vm f(vhf x, vhf y) { return f(raise(x), raise(y)); } \
  INLINE bool f(bf16 x, bf16 y) { return f(raise(x), raise(y)); } INLINE bool f(f16 x, f16 y) { return f(raise(x), raise(y)); }
COMPARE_HALF(eq) COMPARE_HALF(ne) COMPARE_HALF(lt) COMPARE_HALF(le)

// ---- same bits, another type of the same width ----
INLINE vf same_bits(tag<f32>, vi x) { return (vf)x; }
INLINE vi same_bits(tag<i32>, vf x) { return (vi)x; }
INLINE vdd same_bits(tag<f64>, vqq x) { return {(vd)x.a, (vd)x.b}; }
INLINE vqq same_bits(tag<i64>, vdd x) { return {(vq)x.a, (vq)x.b}; }
INLINE vs same_bits(tag<i16>, vbf x) { return (vs)x.bits; }
INLINE vs same_bits(tag<i16>, vhf x) { return (vs)x.bits; }
INLINE vbf same_bits(tag<bf16>, vs x) { return {(vh)x}; }
INLINE vhf same_bits(tag<f16>, vs x) { return {(vh)x}; }
INLINE vbf same_bits(tag<bf16>, vhf x) { return {x.bits}; }
INLINE vhf same_bits(tag<f16>, vbf x) { return {x.bits}; }
INLINE vb same_bits(tag<i8>, vub x) { return (vb)x; }
INLINE vub same_bits(tag<u8>, vb x) { return (vub)x; }
INLINE vb same_bits(tag<i8>, vm x) { return to(tag<i8>{}, x); }
INLINE vub same_bits(tag<u8>, vm x) { return to(tag<u8>{}, x); }
INLINE vm same_bits(tag<bool>, vb x) { return ne(x, vb{}); }
INLINE vm same_bits(tag<bool>, vub x) { return ne(x, vub{}); }
template <class T> INLINE vec<T, LANES> same_bits(tag<T>, vec<T, LANES> x) { return x; }
template <class T, class H> INLINE auto same_bits(tag<T> t, two<H> x) { return pair(same_bits(t, x.a), same_bits(t, x.b)); }
template <class T, class S> INLINE T same_bits(tag<T>, S x) { return __builtin_bit_cast(T, x); }
template <class T, class V> INLINE auto bitcast(V x) { return same_bits(tag<T>{}, x); }
