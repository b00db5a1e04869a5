// Threads: units first .. last of a kernel go to one thread each; little work stays on the calling thread.
// The runtime is called as `#pragma omp parallel` calls it in GCC, so that every compiler uses libtorch's.
extern "C" int omp_get_max_threads(); extern "C" int omp_get_thread_num(); extern "C" int omp_get_num_threads(); extern "C" int omp_in_parallel();
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
const i64 WORK_PER_THREAD = 16384;
// How many elements of an axis each thread gets when they are shared out along it, in whole vectors.
template <int W> INLINE i64 share_of(i64 extent, i64 work) {
  i64 threads = work / WORK_PER_THREAD;
  if (threads > 1) { i64 most = omp_in_parallel() ? 1 : omp_get_max_threads(); threads = threads > most ? most : threads; }
  if (threads < 1) threads = 1;
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
template <class F> INLINE int parallel(i64 units, i64 work, F run) {
  i64 threads = work / WORK_PER_THREAD;
  if (threads > units) threads = units;
  if (threads > 1) { i64 most = omp_in_parallel() ? 1 : omp_get_max_threads(); threads = threads > most ? most : threads; }
  if (threads <= 1) return units > 0 ? run(0, units, false) : 0;
  team<F> all = {&run, units, 0};
  GOMP_parallel(member<F>, &all, (unsigned)threads, 0);
  return all.failed;
}
