// Threads: units first .. last of a kernel go to one thread each; little work stays on the calling thread.
// The runtime is called as `#pragma omp parallel` calls it in GCC, so that every compiler uses libtorch's.
extern "C" int omp_get_max_threads(); extern "C" int omp_get_thread_num(); extern "C" int omp_get_num_threads(); extern "C" int omp_in_parallel();
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
const i64 WORK_PER_THREAD = 16384;
INLINE i64 threads_of(i64 work) {
  i64 threads = work / WORK_PER_THREAD;
  return threads <= 1 ? 1 : index_min(threads, omp_in_parallel() ? 1 : omp_get_max_threads());
}
// How many elements of an axis each thread gets when they are shared out along it, in whole vectors.
template <int W> INLINE i64 share_of(i64 extent, i64 work) {
  i64 threads = threads_of(work);
  i64 vectors = (extent + W * threads - 1) / (W * threads);
  return (vectors > 0 ? vectors : 1) * W;
}
template <class F> struct team { F* run; i64 units; int failed; };   // the largest error of any thread
template <class F> static void member(void* data) {
  team<F>* t = (team<F>*)data;
  i64 mine = omp_get_thread_num(), all = omp_get_num_threads();
  int error = (*t->run)(t->units * mine / all, t->units * (mine + 1) / all, true);
  for (int old = 0; old < error && !__atomic_compare_exchange_n(&t->failed, &old, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);) {}
}
INLINE i64 threads_for(i64 units, i64 work) { return index_min(threads_of(work), units); }
template <class F> INLINE int parallel(i64 units, i64 work, F run) {
  i64 threads = threads_for(units, work);
  if (threads <= 1) return units > 0 ? run(0, units, false) : 0;
  team<F> all = {&run, units, 0};
  GOMP_parallel(member<F>, &all, (unsigned)threads, 0);
  return all.failed;
}
// What chunks of rows add to the same places: as many chunks as threads, of some rows each; `parts` has a row per chunk.
INLINE i64 chunks_of(i64 rows, i64 work) { return threads_for((rows + GROUP - 1) / GROUP, work); }
static __attribute__((noinline)) void add_parts(f32* to, const f64* parts, i64 chunks, i64 count) {
  parallel((count + 1023) / 1024, chunks * count, [&](i64 first, i64 last, bool) LAMBDA {
    return lanes<LANES>(first * 1024, index_min(last * 1024, count), [&](i64 i, auto n) LAMBDA {
      auto sum = cast<f64>(load<LANES>((const f32*)to + i, n));
      for (i64 chunk = 0; chunk < chunks; ++chunk) sum = sum + load<LANES>(parts + chunk * count + i, n);
      store<LANES, f32>(to + i, cast<f32>(sum), n);
      return 0;
    });
  });
}
